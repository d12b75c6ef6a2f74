//go:build tools

// Package envtest names the programs of this module, so that `go mod tidy` keeps what they need.
package envtest

import (
	_ "go.etcd.io/etcd/server/v3" // etcd
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "sigs.k8s.io/kustomize/kustomize/v5" // kustomize
)
