package tracker

import (
	"context"

	rules "k8s.io/api/resource/RULES_VERSION"
	resourceapi "k8s.io/api/resource/v1"
)

// OracleApply applies rules to one slice as the tracker does for its listers.
func OracleApply(ctx context.Context, slice *resourceapi.ResourceSlice, taintRules []*rules.DeviceTaintRule) (*resourceapi.ResourceSlice, error) {
	return (&Tracker{}).applyPatches(ctx, slice, taintRules)
}
