"""Prefixes with a meaning of their own, which decide what is internet and what a pod may have."""

from __future__ import annotations

from netmgr.prefixes import Prefix


def _prefixes(text: str) -> tuple[Prefix, ...]:
    return tuple(map(Prefix.parse, text.split()))


# ::/127 holds :: and ::1. Azure's platform address is in public space, so no RFC lists it.
SPECIAL_USE = _prefixes(
    "0.0.0.0/8 127.0.0.0/8 169.254.0.0/16 168.63.129.16/32 224.0.0.0/4 255.255.255.255/32 "
    "::/127 fe80::/10 ff00::/8"
)
"""Never internet (RFC 6890; 168.63.129.16 is Azure's platform address), without exception."""

RESERVED_USE = _prefixes("198.18.0.0/15 240.0.0.0/4 100::/64")
"""Never internet either (RFC 6890: benchmarks, reserved, discard), but allowed for pods.

Prefixes for documentation (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32) are
internet: they are not routed and on no bill, and labs use them for their internet.
"""

PRIVATE_USE = _prefixes("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7")
"""What `internal` defaults to: RFC 1918, RFC 6598 and RFC 4193."""

PLATFORM = _prefixes("169.254.169.254 fd00:ec2::254 fd20:ce::254 168.63.129.16")
"""What `protect` defaults to: metadata (by IPv6 AWS's and Google's), and Azure's platform."""
