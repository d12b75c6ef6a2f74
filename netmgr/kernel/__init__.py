"""Everything that speaks to Linux, and nothing that decides."""
