package customresources

import resourceapi "k8s.io/api/resource/v1"

// Ready opens areResourcePoolsReady.
func Ready(slices, template []*resourceapi.ResourceSlice) bool {
	return areResourcePoolsReady(slices, template)
}

// Complete opens getCompleteResourcePools.
func Complete(slices []*resourceapi.ResourceSlice) map[string]int {
	return getCompleteResourcePools(slices)
}
