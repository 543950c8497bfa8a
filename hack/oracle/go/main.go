// The oracle: Kubernetes' own structured allocator behind a pipe.
//
// One JSON document per line on stdin, one answer per line on stdout. It is compiled inside a copy of the module
// k8s.io/dynamic-resource-allocation (see ../build.py), because the parts it drives are internal to that module.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type deviceRef struct {
	Driver, Pool, Device string
}

type sharedRef struct {
	Driver, Pool, Device, ShareID string
}

type capacityRef struct {
	Driver, Pool, Device string
	Consumed             resourceapi.DeviceRequestAllocationResult
}

// state is what upstream's test cases give directly; scenes give claims instead.
type state struct {
	Devices  []deviceRef
	Shared   []sharedRef
	Capacity []capacityRef
}

type scene struct {
	ID         string
	Features   []string
	Nodes      []*v1.Node
	Slices     []*resourceapi.ResourceSlice
	Classes    []*resourceapi.DeviceClass
	Allocated  []*resourceapi.ResourceClaim
	State      *state
	Claims     []*resourceapi.ResourceClaim
	TaintRules []json.RawMessage
	TimeoutMs  int
	// For a selector alone: the expression and the device it is tried on.
	Expression *string
	Derived    bool
	Driver     string
	Device     *resourceapi.Device
}

type nodeAnswer struct {
	Node    string                         `json:"node"`
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error,omitempty"`
	Kind    string                         `json:"kind,omitempty"`
	Calls   int64                          `json:"calls,omitempty"`
}

type answer struct {
	ID      string       `json:"id"`
	Channel string       `json:"channel,omitempty"`
	Answers []nodeAnswer `json:"answers,omitempty"`
	Error   string       `json:"error,omitempty"`
	// For a selector alone.
	Compile   string                       `json:"compile,omitempty"`
	Matches   *bool                        `json:"matches,omitempty"`
	Attribute *resourceapi.DeviceAttribute `json:"attribute,omitempty"`
	Cost      *uint64                      `json:"cost,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("deviceclass.resource.k8s.io %q not found", name)
}

func setFields(target any, names []string) {
	value := reflect.ValueOf(target).Elem()
	for _, name := range names {
		aliases := []string{name}
		if name == "DeviceBindingAndStatus" {
			aliases = append(aliases, "DeviceBinding", "DeviceStatus")
		}
		for _, alias := range aliases {
			if field := value.FieldByName(alias); field.IsValid() {
				field.SetBool(true)
			}
		}
	}
}

func celFeatures(names []string) cel.Features {
	var features cel.Features
	for _, name := range names {
		switch name {
		case "ConsumableCapacity":
			setFields(&features, []string{"EnableConsumableCapacity"})
		case "ListTypeAttributes":
			setFields(&features, []string{"EnableListTypeAttributes"})
		}
	}
	return features
}

// allocated does what the scheduler does with the claims it sees.
func allocated(claims []*resourceapi.ResourceClaim, consumable bool) structured.AllocatedState {
	result := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, device := range claim.Status.Allocation.Devices.Results {
			if device.AdminAccess != nil && *device.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(device.Driver, device.Pool, device.Device)
			if consumable && device.ShareID != nil {
				result.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, device.ShareID))
				if device.ConsumedCapacity != nil {
					result.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, device.ConsumedCapacity))
				}
				continue
			}
			result.AllocatedDevices.Insert(id)
		}
	}
	return result
}

func given(s *state) structured.AllocatedState {
	result := allocated(nil, true)
	for _, d := range s.Devices {
		result.AllocatedDevices.Insert(structured.MakeDeviceID(d.Driver, d.Pool, d.Device))
	}
	for _, d := range s.Shared {
		share := types.UID(d.ShareID)
		result.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(structured.MakeDeviceID(d.Driver, d.Pool, d.Device), &share))
	}
	for _, d := range s.Capacity {
		id := structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
		result.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, d.Consumed.ConsumedCapacity))
	}
	return result
}

func has(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func allocateOn(ctx context.Context, allocator structured.Allocator, s *scene, node *v1.Node) (result nodeAnswer) {
	result.Node = node.Name
	defer func() {
		if panicked := recover(); panicked != nil {
			result.Kind, result.Error, result.Results = "panic", fmt.Sprint(panicked), nil
		}
	}()
	if s.TimeoutMs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(s.TimeoutMs)*time.Millisecond)
		defer cancel()
	}
	results, err := allocator.Allocate(ctx, node, s.Claims)
	result.Results = results
	if err != nil {
		result.Error = err.Error()
		result.Kind = "fatal"
		if onlyThisNode(err) {
			result.Kind = "node"
		}
		if errors.Is(err, context.DeadlineExceeded) {
			result.Kind = "timeout"
		}
	}
	result.Calls = calls(allocator)
	return result
}

func allocate(ctx context.Context, s *scene) answer {
	result := answer{ID: s.ID}
	var features structured.Features
	setFields(&features, s.Features)
	slices, err := taintedSlices(ctx, s)
	if err != nil {
		result.Error = err.Error()
		return result
	}
	used := allocated(s.Allocated, has(s.Features, "ConsumableCapacity"))
	if s.State != nil {
		used = given(s.State)
	}
	for _, node := range s.Nodes {
		// A new allocator for each node: the count of calls is then that node's own.
		allocator, err := structured.NewAllocator(ctx, features, used, classes(s.Classes), slices, cel.NewCache(64, celFeatures(s.Features)))
		if err != nil {
			result.Error = err.Error()
			return result
		}
		result.Channel = channel(allocator)
		result.Answers = append(result.Answers, allocateOn(ctx, allocator, s, node))
	}
	return result
}

func evaluate(ctx context.Context, s *scene) answer {
	result := answer{ID: s.ID}
	compiled, attribute := compileAndDerive(ctx, s)
	if compiled.Error != nil {
		result.Compile = compiled.Error.Error()
		return result
	}
	if attribute != nil {
		result.Attribute, result.Error, result.Cost = attribute.value, attribute.err, attribute.cost
		return result
	}
	device := cel.Device{Driver: s.Driver, AllowMultipleAllocations: s.Device.AllowMultipleAllocations, Attributes: s.Device.Attributes, Capacity: s.Device.Capacity}
	matches, details, err := compiled.DeviceMatches(ctx, device)
	if err != nil {
		result.Error = err.Error()
	} else {
		result.Matches = &matches
	}
	if details != nil {
		result.Cost = details.ActualCost()
	}
	return result
}

func main() {
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriterSize(os.Stdout, 1<<20)
	decoder, encoder := json.NewDecoder(input), json.NewEncoder(output)
	for decoder.More() {
		var s scene
		if err := decoder.Decode(&s); err != nil {
			fmt.Fprintln(os.Stderr, "oracle: cannot read a scene:", err)
			os.Exit(1)
		}
		var result answer
		if s.Expression != nil {
			result = evaluate(context.Background(), &s)
		} else {
			result = allocate(context.Background(), &s)
		}
		if err := encoder.Encode(result); err != nil {
			fmt.Fprintln(os.Stderr, "oracle: cannot write an answer:", err)
			os.Exit(1)
		}
		if input.Buffered() == 0 {
			output.Flush()
		}
	}
	output.Flush()
}
