//go:build tools

// Package multus names the program that tests/runtimes builds: Multus as a plugin ("thin").
package multus

import (
	_ "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"
)
