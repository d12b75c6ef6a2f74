"""Virtual networks that exist already, as `az network vnet list` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from netmgr.errors import ConfigError
from netmgr.plan.clouds.cloud import ListedNetwork


def read_networks(entries: Sequence[Mapping[str, Any]], source: str) -> list[ListedNetwork]:
    """Read each VNet's `name`, `addressSpace.addressPrefixes` and `subnets`.

    Raises:
        ConfigError: an entry lacks one of these.
    """
    networks = []
    for entry in entries:
        space = entry.get("addressSpace")
        if "name" not in entry or not isinstance(space, Mapping) or "addressPrefixes" not in space:
            raise ConfigError(
                f"{source}: an entry has no name or no addressSpace.addressPrefixes, "
                "as az network vnet list has"
            )
        name = str(entry["name"])
        subnets = tuple(_subnets(entry.get("subnets") or (), f"{source}: {name}"))
        networks.append(ListedNetwork(name, space["addressPrefixes"], subnets))
    return networks


def _subnets(entries: Sequence[object], where: str) -> Iterator[tuple[str, Sequence[object]]]:
    for subnet in entries:
        held = subnet if isinstance(subnet, Mapping) else {}
        name, single = str(held.get("name", "")), held.get("addressPrefix")
        # A subnet of one prefix has it under the singular key.
        prefixes = held.get("addressPrefixes") or ([] if single is None else [single])
        if not name or not prefixes:
            raise ConfigError(
                f"{where}: a subnet has no name, or neither addressPrefix nor addressPrefixes"
            )
        yield name, prefixes
