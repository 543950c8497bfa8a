package cloudprovider

import "unique"

// DeviceID and InstanceType are as in Karpenter's types.go, of InstanceType what the bindings read.
type DeviceID struct {
	Driver unique.Handle[string]
	Pool   unique.Handle[string]
	Device unique.Handle[string]
}

// InstanceType has a name and its devices.
type InstanceType struct {
	Name             string
	DynamicResources DynamicResources
}
