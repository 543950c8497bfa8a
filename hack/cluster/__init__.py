"""A real one-node Kubernetes cluster for tests, built from Go modules and run inside its own namespaces.

``python -m hack.cluster up`` starts etcd, kube-apiserver, kube-scheduler, kube-controller-manager, containerd, kubelet
and kube-proxy as processes of one PID, mount, network and UTS namespace (the way kind runs a node, without a container
engine around it). Nothing outside the cluster's own folder is written, the machine's network is not changed except
for one veth pair, and the death of one process ends everything.
"""
