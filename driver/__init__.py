"""The driver: what the node has, what is published, how a claim is prepared."""
