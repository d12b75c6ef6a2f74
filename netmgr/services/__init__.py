"""A spoke's Services on its NAT host: from Services and EndpointSlices to translations in the kernel."""
