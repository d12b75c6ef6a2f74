"""What our sets are called in the kernel."""

from __future__ import annotations

import hashlib

PREFIX = "netmgr-"
"""Every set of ours is called so, and no other."""

NAME_LENGTH = 31
"""The most characters a set's name has (IPSET_MAXNAMELEN, less the final zero)."""

_DIGEST_LENGTH = 8


def kernel_name(name: str) -> str:
    """The ipset's name for a set of the model, for example `netmgr-pod-out4` for `pod_out4`.

    What would be too long, as the set of a site with a long name, ends in a digest instead.
    """
    whole = PREFIX + name.replace("_", "-")
    if len(whole) <= NAME_LENGTH:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{whole[: NAME_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"
