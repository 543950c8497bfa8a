// Command autoscaler answers questions with the code of Cluster Autoscaler and Karpenter: one JSON object a line in, one
// a line out, in the same order.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"unique"

	apiv1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/set"

	"gpudra.dev/autoscaler/cloudprovider"
	"gpudra.dev/autoscaler/customresources"
	"gpudra.dev/autoscaler/drametrics"
	"gpudra.dev/autoscaler/drautils"
	"gpudra.dev/autoscaler/framework"
	"gpudra.dev/autoscaler/karpenter"
	"gpudra.dev/autoscaler/scheduling"
)

type binding struct {
	Attribute string     `json:"attribute"`
	Devices   [][]string `json:"devices"`
}

type question struct {
	Op       string                       `json:"op"`
	Slices   []*resourceapi.ResourceSlice `json:"slices"`
	Template []*resourceapi.ResourceSlice `json:"template"`
	Claims   []*resourceapi.ResourceClaim `json:"claims"`
	Owner    string                       `json:"owner"`
	Node     string                       `json:"node"`
	NewNode  string                       `json:"newNode"`
	Suffix   string                       `json:"suffix"`
	Pools    []string                     `json:"pools"`
	Bindings []binding                    `json:"bindings"`

	Templates []template `json:"templates"`
	Attribute string     `json:"attribute"`
	Tries     [][]string `json:"tries"`
}

type template struct {
	Driver string `json:"driver"`
	Pool   struct {
		Name string `json:"name"`
	} `json:"pool"`
	Devices []struct {
		Name       string                                                    `json:"name"`
		Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	} `json:"devices"`
}

type pool struct {
	Devices    []string `json:"devices"`
	Incomplete bool     `json:"incomplete"`
	Invalid    bool     `json:"invalid"`
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(in)
	for decoder.More() {
		var q question
		if err := decoder.Decode(&q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		value, err := answer(&q)
		reply := map[string]any{"value": value}
		if err != nil {
			reply = map[string]any{"error": err.Error()}
		}
		if err := out.Encode(reply); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
}

func answer(q *question) (any, error) {
	switch q.Op {
	case "utilization":
		return drautils.CalculateDynamicResourceUtilization(&framework.NodeInfo{LocalResourceSlices: q.Slices, Claims: q.Claims})
	case "complete":
		return customresources.Complete(q.Slices), nil
	case "ready":
		return customresources.Ready(q.Slices, q.Template), nil
	case "slices":
		slices, _, err := drautils.SanitizedNodeResourceSlices(q.Slices, q.NewNode, q.Suffix)
		for _, slice := range slices {
			slice.UID = ""
		}
		return slices, err
	case "claims":
		owner := &apiv1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(q.Owner), Namespace: "ml"}}
		claims, err := drautils.SanitizedPodResourceClaims(owner, owner, q.Claims, q.Suffix, q.NewNode, q.Node, set.New(q.Pools...))
		for _, claim := range claims {
			claim.UID = ""
		}
		return claims, err
	case "driver":
		return drametrics.GetDriverNamesForMetrics(q.Slices), nil
	case "pools":
		return gathered(q), nil
	case "bindings":
		return bound(q), nil
	case "match":
		return matched(q), nil
	}
	return nil, fmt.Errorf("no such op %q", q.Op)
}

func gathered(q *question) map[string]pool {
	var slices []karpenter.ResourceSlice
	for _, slice := range q.Slices {
		slices = append(slices, karpenter.NewAPIServerSlice(slice))
	}
	result := map[string]pool{}
	for _, p := range karpenter.GatherPools(slices, scheduling.NewRequirements(), q.Node) {
		found := pool{Devices: []string{}, Incomplete: p.Incomplete, Invalid: p.Invalid}
		for _, device := range p.Devices {
			found.Devices = append(found.Devices, device.Name.Value())
		}
		result[p.Key.Driver.Value()+" "+p.Key.Pool.Value()] = found
	}
	return result
}

// matched tells for each try whether all of its devices may be allocated together under matchAttribute.
func matched(q *question) []bool {
	devices := map[string]cloudprovider.Device{}
	ids := map[string]karpenter.DeviceID{}
	for _, t := range q.Templates {
		for _, d := range t.Devices {
			devices[d.Name] = cloudprovider.Device{Name: unique.Make(d.Name), Attributes: d.Attributes}
			ids[d.Name] = karpenter.DeviceID{Template: true, DeviceID: cloudprovider.DeviceID{
				Driver: unique.Make(t.Driver), Pool: unique.Make(t.Pool.Name), Device: unique.Make(d.Name)}}
		}
	}
	result := []bool{}
	for _, names := range q.Tries {
		constraint := &karpenter.MatchAttributeConstraint{
			RequestNames:  sets.New[string](),
			AttributeName: resourceapi.QualifiedName(q.Attribute),
			AttributeBindingFallback: &karpenter.AttributeBindingFallback{
				Bindings: bindings(q), NodePool: "pool", InstanceTypeID: unique.Make("type")},
		}
		fits := true
		for _, name := range names {
			fits = fits && constraint.Add(karpenter.RequestName{Parent: "r"}, devices[name], ids[name])
		}
		result = append(result, fits)
	}
	return result
}

func bindings(q *question) karpenter.AttributeBindings {
	resources := cloudprovider.DynamicResources{}
	for _, b := range q.Bindings {
		entry := &cloudprovider.AttributeBinding{Attribute: resourceapi.QualifiedName(b.Attribute)}
		for _, d := range b.Devices {
			entry.Devices = append(entry.Devices, cloudprovider.DeviceID{
				Driver: unique.Make(d[0]), Pool: unique.Make(d[1]), Device: unique.Make(d[2])})
		}
		resources.AttributeBindings = append(resources.AttributeBindings, entry)
	}
	return karpenter.BuildAttributeBindings(
		map[string][]*cloudprovider.InstanceType{"pool": {{Name: "type", DynamicResources: resources}}})
}

func bound(q *question) map[string]map[string][]string {
	result := map[string]map[string][]string{}
	for attribute, pools := range bindings(q) {
		result[string(attribute)] = map[string][]string{}
		for device, others := range pools["pool"][unique.Make("type")] {
			names := []string{}
			for other := range others {
				names = append(names, text(other))
			}
			sort.Strings(names)
			result[string(attribute)][text(device)] = names
		}
	}
	return result
}

func text(id cloudprovider.DeviceID) string {
	return strings.Join([]string{id.Driver.Value(), id.Pool.Value(), id.Device.Value()}, " ")
}
