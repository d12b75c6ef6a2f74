//go:build tools

// Package peers names the plugins that `tests.bench attaching` measures beside netmgr's.
package peers

import (
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local"
	_ "github.com/containernetworking/plugins/plugins/main/ptp"
)
