"""Everything that speaks to Linux, and nothing that decides. What it refuses is a KernelError."""
