"""This machine: NVML, sysfs, uevents and device nodes, and a mock of all that. Knows nothing of Kubernetes."""
