"""The `netmgr` command: one file for each group of commands."""
