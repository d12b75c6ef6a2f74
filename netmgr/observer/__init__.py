"""Finds the pods that another CNI plugin wired: what its runtime remembers, held against what the kernel has."""
