"""Stand-ins for the kubelet, the scheduler and the API server: for demos and for tests without a cluster."""
