module gpudra.test/cluster/containerd

go 1.26

require github.com/containerd/containerd/v2 v2.4.2
