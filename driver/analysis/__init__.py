"""Pure functions over Kubernetes documents: what the scheduler and the autoscalers make of what is published."""
