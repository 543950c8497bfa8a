package main

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type derived struct {
	value *resourceapi.DeviceAttribute
	err   string
	cost  *uint64
}

func compileAndDerive(_ context.Context, s *scene) (cel.CompilationResult, *derived) {
	compiler := cel.GetCompiler(celFeatures(s.Features))
	return compiler.CompileCELExpression(*s.Expression, cel.Options{DisableCostEstimation: true}), nil
}
