//go:build tools

// Package policies names the program of this module for `.ci/programs`.
package policies

import (
	_ "sigs.k8s.io/kube-network-policies/cmd/kube-network-policies/standard" // kube-network-policies
)
