// Package scheduling stands where Karpenter's own stands. Node selectors are not part of the questions asked here, so a
// slice with one matches nothing.
package scheduling

import corev1 "k8s.io/api/core/v1"

// Requirement is unused.
type Requirement struct{}

// Requirements is always empty.
type Requirements map[string]*Requirement

// AllowUndefinedWellKnownLabels is unused.
var AllowUndefinedWellKnownLabels = struct{}{}

// NewRequirements returns an empty set.
func NewRequirements() Requirements { return Requirements{} }

// NewNodeSelectorRequirements returns an empty set.
func NewNodeSelectorRequirements(...corev1.NodeSelectorRequirement) Requirements {
	return Requirements{}
}

// Values returns nothing.
func (Requirements) Values() []*Requirement { return nil }

// Add does nothing.
func (Requirements) Add(...*Requirement) {}

// IsCompatible is false.
func (Requirements) IsCompatible(Requirements, ...any) bool { return false }
