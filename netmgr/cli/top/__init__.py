"""`netmgr node top`: who uses the internet right now."""
