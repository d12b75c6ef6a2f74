"""Virtual networks that exist already, as `az` and the REST API print them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from netmgr.errors import ConfigError
from netmgr.plan.clouds.cloud import ListedNetwork


def read_networks(data: object, source: str) -> list[ListedNetwork] | None:
    """Read each VNet's `name`, `id`, `addressSpace.addressPrefixes`, `subnets` and peers.

    `data` is of `az network vnet list` or `show`, or of the REST API; else there are None. Several
    networks of one name have their resource group's and subscription's in it. A peer that is not
    listed itself is NAME-peer.

    Raises:
        ConfigError: an entry lacks one of these, or the answer is one page of several.
    """
    match data:
        case {"value": [{}, *_], "nextLink": str(_)}:
            raise ConfigError(f"{source}: is one page of several (nextLink); join their `value`")
        case {"value": [{}, *_] as listing} | ([{}, *_] as listing):
            pass
        case {"addressSpace": _} | {"properties": {"addressSpace": _}}:
            listing = [data]
        case _:
            return None
    networks = [_network(_flat(vnet), source) for vnet in listing]
    known = {network.id.lower() for network in networks}
    # Those of another subscription, say, which `az network vnet list` does not print.
    peers = {peer.id.lower(): peer for vnet in listing for peer in _peers(_flat(vnet), source)}
    networks += (peer for identity, peer in peers.items() if identity not in known)
    alike = Counter(network.name.lower() for network in networks)
    return [
        replace(network, name="-".join((network.name, *network.id.split("/")[4:1:-2])))
        if alike[network.name.lower()] > 1
        else network
        for network in networks
    ]


def _peers(vnet: Mapping[str, Any], source: str) -> Iterator[ListedNetwork]:
    for peering in _list(vnet, "virtualNetworkPeerings", source):
        match _flat(peering):
            case {
                "remoteVirtualNetwork": {"id": str(peer)},
                "remoteAddressSpace": {"addressPrefixes": prefixes},
            }:
                yield ListedNetwork(f"{peer.rsplit('/', 1)[-1]}-peer", prefixes, (), peer)
            case _:
                pass


def _network(entry: Mapping[str, Any], source: str) -> ListedNetwork:
    space = entry.get("addressSpace")
    if "name" not in entry or not isinstance(space, Mapping) or "addressPrefixes" not in space:
        raise ConfigError(
            f"{source}: an entry has no name or no addressSpace.addressPrefixes; "
            "write the file with: az network vnet list --output json"
        )
    name = str(entry["name"])
    subnets = tuple(_subnets(_list(entry, "subnets", source), f"{source}: {name}"))
    return ListedNetwork(name, space["addressPrefixes"], subnets, str(entry.get("id", "")))


def _subnets(entries: Sequence[object], where: str) -> Iterator[tuple[str, Sequence[object]]]:
    for subnet in entries:
        held = _flat(subnet)
        name, single = str(held.get("name", "")), held.get("addressPrefix")
        # A subnet of one prefix has it under the singular key.
        prefixes = _list(held, "addressPrefixes", where) or ([] if single is None else [single])
        if not name or not prefixes:
            raise ConfigError(
                f"{where}: a subnet has no name, or neither addressPrefix nor addressPrefixes"
            )
        yield name, prefixes


def _list(held: Mapping[str, Any], key: str, where: str) -> list[object]:
    listed = held.get(key) or []
    if not isinstance(listed, list):
        raise ConfigError(f"{where}: {key} is no list")
    return listed


def _flat(entry: object) -> Mapping[str, Any]:
    """An entry as `az` prints it: what REST has under `properties` is beside its name."""
    held = entry if isinstance(entry, Mapping) else {}
    inner = held.get("properties")
    return {**held, **inner} if isinstance(inner, Mapping) else held
