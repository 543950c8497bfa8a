//go:build tools

// Package runc pins the OCI runtime that the test cluster runs.
package runc

import _ "github.com/opencontainers/runc"
