package main

import (
	"context"
	"encoding/json"

	rules "k8s.io/api/resource/RULES_VERSION"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
)

// taintedSlices lets the scheduler's own tracker apply the DeviceTaintRules.
func taintedSlices(ctx context.Context, s *scene) ([]*resourceapi.ResourceSlice, error) {
	if len(s.TaintRules) == 0 {
		return s.Slices, nil
	}
	parsed := make([]*rules.DeviceTaintRule, len(s.TaintRules))
	for i, raw := range s.TaintRules {
		parsed[i] = &rules.DeviceTaintRule{}
		if err := json.Unmarshal(raw, parsed[i]); err != nil {
			return nil, err
		}
	}
	slices := make([]*resourceapi.ResourceSlice, len(s.Slices))
	for i, slice := range s.Slices {
		patched, err := tracker.OracleApply(ctx, slice, parsed)
		if err != nil {
			return nil, err
		}
		slices[i] = patched
	}
	return slices, nil
}
