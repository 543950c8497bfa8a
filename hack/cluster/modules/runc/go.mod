module gpudra.test/cluster/runc

go 1.26

require github.com/opencontainers/runc v1.5.3
