//go:build tools

package main

import (
	_ "coredns" // coredns
)
