package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured/internal"
	"k8s.io/dynamic-resource-allocation/structured/internal/VARIANT"
	"k8s.io/dynamic-resource-allocation/structured/internal/allocatortesting"
)

// recorder writes down what upstream's test table asks and what upstream's allocator answers.
type recorder struct {
	internal.Allocator
	features internal.Features
	used     internal.AllocatedState
	classes  []*resourceapi.DeviceClass
	slices   []*resourceapi.ResourceSlice
}

func (r *recorder) GetStats() internal.Stats {
	if extended, ok := r.Allocator.(internal.AllocatorExtended); ok {
		return extended.GetStats()
	}
	return internal.Stats{}
}

func (r *recorder) Allocate(ctx context.Context, node *v1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	results, err := r.Allocator.Allocate(ctx, node, claims)
	line := map[string]any{
		"features": r.features, "node": node, "slices": r.slices, "classes": r.classes, "claims": claims,
		"devices": []string{}, "shared": []string{}, "capacity": map[string]any{}, "results": results, "error": "", "calls": r.GetStats().NumAllocateOneInvocations,
	}
	devices := []string{}
	for id := range r.used.AllocatedDevices {
		devices = append(devices, id.String())
	}
	shared := []string{}
	for id := range r.used.AllocatedSharedDeviceIDs {
		shared = append(shared, id.String())
	}
	capacity := map[string]any{}
	for id, consumed := range r.used.AggregatedCapacity {
		capacity[id.String()] = consumed
	}
	line["devices"], line["shared"], line["capacity"] = devices, shared, capacity
	if err != nil {
		line["error"] = err.Error()
	}
	encoded, failed := json.Marshal(line)
	if failed != nil {
		panic(failed)
	}
	fmt.Fprintf(os.Stdout, "\nCASE %s\n", encoded)
	return results, err
}

func TestCases(t *testing.T) {
	make := func(ctx context.Context, features internal.Features, used internal.AllocatedState, lister internal.DeviceClassLister, slices []*resourceapi.ResourceSlice, cache *cel.Cache) (internal.Allocator, error) {
		allocator, err := VARIANT.NewAllocator(ctx, features, USED, lister, slices, cache)
		if err != nil {
			return nil, err
		}
		all, err := lister.List()
		return &recorder{Allocator: allocator, features: features, used: used, classes: all, slices: slices}, err
	}
	allocatortesting.TestAllocator(t, VARIANT.SupportedFeatures, make)
	LEXICOGRAPHICAL
}
