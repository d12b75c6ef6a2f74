"""iptables' tables in the kernel, of either variant: entries, whole tables, and changes of them."""
