"""A fleet in one process: netmgr's own code on simulated kernels, machines and time."""
