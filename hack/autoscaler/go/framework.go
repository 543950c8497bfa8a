// Package framework stands where Cluster Autoscaler's own stands: what its utilisation reads of a node, and no more.
package framework

import resourceapi "k8s.io/api/resource/v1"

// NodeInfo is a node's slices and the claims of its pods.
type NodeInfo struct {
	LocalResourceSlices []*resourceapi.ResourceSlice
	Claims              []*resourceapi.ResourceClaim
}

// ResourceClaims returns the claims of the pods on the node.
func (n *NodeInfo) ResourceClaims() []*resourceapi.ResourceClaim { return n.Claims }
