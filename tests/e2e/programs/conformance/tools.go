//go:build tools

package conformance

import (
	_ "conformance" // conformance.test
	_ "k8s.io/kubernetes/test/images/agnhost"
)
