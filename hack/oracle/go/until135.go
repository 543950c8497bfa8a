package main

import (
	"fmt"
	"strings"

	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/dynamic-resource-allocation/structured/internal"
)

func onlyThisNode(error) bool { return false }

func channel(allocator structured.Allocator) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(fmt.Sprintf("%T", allocator), "*"), ".")
	return name
}

func calls(allocator structured.Allocator) int64 {
	if extended, ok := allocator.(internal.AllocatorExtended); ok {
		return extended.GetStats().NumAllocateOneInvocations
	}
	return 0
}
