"""What our sets are called in the kernel."""

from __future__ import annotations


def kernel_name(name: str) -> str:
    """The ipset's name for a set of the model, for example `netmgr-pod-out4` for `pod_out4`."""
    return f"netmgr-{name.replace('_', '-')}"
