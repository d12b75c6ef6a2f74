// Package conformance links Kubernetes' own end-to-end tests of networking into one program.
// Linking only these, rather than all, saves most of the time that k8s.io/kubernetes/test/e2e takes.
package conformance
