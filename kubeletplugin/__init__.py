"""A library for DRA kubelet plugins in Python: registration, the DRA service, ResourceSlices. Knows nothing of GPUs."""
