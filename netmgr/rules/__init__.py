"""The kernel's rules and counters: one desired ruleset, two backends that hold it."""
