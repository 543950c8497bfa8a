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

func compileAndDerive(ctx context.Context, s *scene) (cel.CompilationResult, *derived) {
	compiler := cel.GetCompiler(celFeatures(s.Features))
	compiled := compiler.CompileCELExpression(*s.Expression, cel.Options{DisableCostEstimation: true, DerivedAttribute: s.Derived})
	if compiled.Error != nil || !s.Derived {
		return compiled, nil
	}
	result := &derived{}
	value, details, err := compiled.EvaluateDerivedAttribute(ctx, cel.Device{Driver: s.Driver, AllowMultipleAllocations: s.Device.AllowMultipleAllocations, Attributes: s.Device.Attributes, Capacity: s.Device.Capacity})
	result.value = value
	if err != nil {
		result.err = err.Error()
	}
	if details != nil {
		result.cost = details.ActualCost()
	}
	return compiled, result
}
