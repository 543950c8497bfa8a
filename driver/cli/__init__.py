"""The commands of ``gpudra``."""
