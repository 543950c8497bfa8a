package main

import (
	"errors"

	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/dynamic-resource-allocation/structured/internal"
)

func onlyThisNode(err error) bool { return errors.Is(err, structured.ErrFailedAllocationOnNode) }

func channel(allocator structured.Allocator) string {
	return string(allocator.(internal.Allocator).Channel())
}

func calls(allocator structured.Allocator) int64 {
	if extended, ok := allocator.(internal.AllocatorExtended); ok {
		return extended.GetStats().NumAllocateOneInvocations
	}
	return 0
}
