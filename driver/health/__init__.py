"""Events and probes -> findings -> a verdict per device -> taints. Pure, but for the thread that looks (Monitor)."""
