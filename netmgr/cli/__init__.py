"""The `netmgr` command: one module for each group of commands, its options, its output."""
