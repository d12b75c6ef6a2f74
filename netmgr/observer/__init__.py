"""Finds pods that another CNI plugin wired: the runtime's result cache, checked in the kernel."""
