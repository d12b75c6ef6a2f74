"""Pods' links, addresses and routes: what should be, what is, and netlink between them."""
