"""The address space as a picture along a Hilbert curve: a model of it, and its three forms."""
