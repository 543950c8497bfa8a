"""Events and probes -> a verdict for each device -> taints and health reports."""
