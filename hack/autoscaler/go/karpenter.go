// Karpenter with its kwok provider, as sigs.k8s.io/karpenter/kwok starts it, and one thing more: the provider's instance
// types are given devices. Of itself the provider knows none; the file that SHAPES_FILE names says which instance type
// has which: what `gpudra shape export --format karpenter` wrote, by the instance type's name.

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"unique"

	resourcev1 "k8s.io/api/resource/v1"

	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

type device struct {
	Name                     string
	Attributes               map[resourcev1.QualifiedName]resourcev1.DeviceAttribute
	Capacity                 map[resourcev1.QualifiedName]resourcev1.DeviceCapacity
	AllowMultipleAllocations bool
	ConsumesCounters         []resourcev1.DeviceCounterConsumption
}

type template struct {
	Driver         string
	Pool           struct{ Name string }
	Devices        []device
	SharedCounters []resourcev1.CounterSet
}

type binding struct {
	Attribute resourcev1.QualifiedName
	Devices   []struct{ Driver, Pool, Device string }
}

type shape struct {
	ResourceSliceTemplates []template
	AttributeBindings      []binding
}

func (s shape) dynamicResources() (found cloudprovider.DynamicResources) {
	for _, each := range s.ResourceSliceTemplates {
		made := &cloudprovider.ResourceSliceTemplate{
			Driver:         unique.Make(each.Driver),
			Pool:           cloudprovider.ResourcePool{Name: unique.Make(each.Pool.Name)},
			SharedCounters: each.SharedCounters,
		}
		for _, one := range each.Devices {
			made.Devices = append(made.Devices, cloudprovider.Device{
				Name:                     unique.Make(one.Name),
				Attributes:               one.Attributes,
				Capacity:                 one.Capacity,
				AllowMultipleAllocations: one.AllowMultipleAllocations,
				ConsumesCounters:         one.ConsumesCounters,
			})
		}
		found.ResourceSliceTemplates = append(found.ResourceSliceTemplates, made)
	}
	for _, each := range s.AttributeBindings {
		made := &cloudprovider.AttributeBinding{Attribute: each.Attribute}
		for _, one := range each.Devices {
			made.Devices = append(made.Devices, cloudprovider.DeviceID{
				Driver: unique.Make(one.Driver),
				Pool:   unique.Make(one.Pool),
				Device: unique.Make(one.Device),
			})
		}
		found.AttributeBindings = append(found.AttributeBindings, made)
	}
	return found
}

func equip(types []*cloudprovider.InstanceType, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	shapes := map[string]shape{}
	if err := json.Unmarshal(text, &shapes); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, each := range types {
		if given, ok := shapes[each.Name]; ok {
			each.DynamicResources = given.dynamicResources()
			delete(shapes, each.Name)
		}
	}
	if len(shapes) != 0 {
		return fmt.Errorf("%s: %d shapes are of no instance type", file, len(shapes))
	}
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx, op := operator.NewOperator()
	types := must(kwok.ConstructInstanceTypes(ctx))
	if file := os.Getenv("SHAPES_FILE"); file != "" {
		if err := equip(types, file); err != nil {
			panic(err)
		}
	}
	bare := kwok.NewCloudProvider(ctx, op.GetClient(), types)
	provider := overlay.Decorate(bare, op.GetClient(), op.InstanceTypeStore)
	matcher := must(health.NewRepairPolicyMatcher(ctx, provider))
	cluster := state.NewCluster(op.Clock, op.GetClient(), provider, state.WithRepairPolicyMatcher(matcher))
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, provider, bare, cluster, op.InstanceTypeStore,
		op.PredictionStore,
	)...).Start(ctx)
}
