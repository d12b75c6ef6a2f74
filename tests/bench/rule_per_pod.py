"""What counts each pod by rules of its own, as a reference."""

from __future__ import annotations

from netmgr.documents.node import Backend
from netmgr.prefixes import Address

RESTORE = {
    Backend.NFTABLES: ("nft", "-f", "-"),
    Backend.IPTABLES_LEGACY: ("iptables-legacy-restore", "-w", "--noflush"),
}


def rules_per_pod(backend: Backend, pods: list[Address]) -> str:
    """What counts each pod by rules of its own, one for each direction, as input of `RESTORE`'s
    programs.
    """
    if backend is Backend.NFTABLES:
        base = "{ type filter hook forward priority -150; }"
        rule = "add rule inet netmgr forward ip"
        lines = [f"add chain inet netmgr forward {base}"]
        lines += [
            f"{rule} {side} {pod} ip {peer} != 10.0.0.0/8 counter"
            for pod in pods
            for side, peer in _SIDES
        ]
        return "\n".join(lines) + "\n"
    lines = [
        f"-A FORWARD -{side[0]} {pod} ! -{peer[0]} 10.0.0.0/8"
        for pod in pods
        for side, peer in _SIDES
    ]
    return "\n".join(["*mangle", *lines, "COMMIT", ""])


_SIDES = (("saddr", "daddr"), ("daddr", "saddr"))
