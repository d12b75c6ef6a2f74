"""A spoke's Services on its NAT host.

From Services and EndpointSlices to translations in the kernel.
"""
