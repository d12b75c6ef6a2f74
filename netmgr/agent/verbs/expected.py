"""Holds `prevResult` of a CHECK against the kernel (specification 1.1.0, section 2, "CHECK").

Everything that it lists has to be there as it says: interfaces with their MAC and MTU, addresses on
their interface, routes. What this attachment made has to be listed, but for routes, which a plugin
later in the chain may have taken away. What it does not list is nobody's concern here: later plugins add
things, and `Dataplane.check` looks at what is netmgr's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cni.previous import Interface, PreviousResult, PreviousRoute
from cni.spec import Request
from netmgr.dataplane.contents import Contents, RouteEntry, contents_of, own_contents
from netmgr.model import Attachment


def differences(previous: PreviousResult, request: Request, attachment: Attachment) -> list[str]:
    """What differs, a sentence each.

    Raises:
        KernelError: the sandbox is gone, or the kernel refuses to list it.
    """
    inside, outside = contents_of(request.netns), own_contents()
    faults = _missing(previous, request, attachment)
    for link in previous.interfaces:
        faults += _link_faults(link, request, inside, outside)
    faults += _address_faults(previous, request, inside, outside)
    faults += [
        f"prevResult has route {route}, which the sandbox does not"
        for route in previous.routes
        if not any(_agrees(route, entry) for entry in inside.routes)
    ]
    return faults


def _missing(previous: PreviousResult, request: Request, attachment: Attachment) -> list[str]:
    """What ADD answered and the result has no more."""
    faults = []
    if not any(link.name == request.ifname and _is_here(link, request) for link in previous.interfaces):
        faults.append(f"prevResult has no interface {request.ifname} in the sandbox {request.netns}")
    if not any(link.name == attachment.host_link and not link.sandbox for link in previous.interfaces):
        faults.append(f"prevResult has no interface {attachment.host_link} on the host")
    listed = previous.addresses_of(request.ifname)
    faults += [
        f"prevResult lacks address {address} of {request.ifname}"
        for address in attachment.addresses
        if address not in listed
    ]
    return faults


def _is_here(link: Interface, request: Request) -> bool:
    """Whether an interface is in the sandbox that the request names, by this or another path."""
    if not link.sandbox or link.sandbox == request.netns:
        return bool(link.sandbox)
    try:
        return Path(link.sandbox).samefile(request.netns)
    except (OSError, ValueError):
        return False


def _link_faults(link: Interface, request: Request, inside: Contents, outside: Contents) -> Iterator[str]:
    if link.is_device or (link.sandbox and not _is_here(link, request)):
        return  # no link of the kernel's, or one of a namespace that this request says nothing about
    where = "the sandbox" if link.sandbox else "the host"
    present = (inside if link.sandbox else outside).links.get(link.name)
    if present is None:
        yield f"prevResult has interface {link.name}, which {where} does not"
        return
    mac = present.mac.hex(":")
    if link.mac and link.mac.lower() != mac:
        yield f"prevResult has MAC {link.mac[:40]} of {link.name}, {where} has {mac}"
    if link.mtu and link.mtu != present.mtu:
        yield f"prevResult has MTU {link.mtu} of {link.name}, {where} has {present.mtu}"


def _address_faults(previous: PreviousResult, request: Request, inside: Contents, outside: Contents) -> Iterator[str]:
    for address, length, index in previous.addresses:
        link = None if index is None else previous.interfaces[index]
        if link is not None and link.sandbox and not _is_here(link, request):
            continue
        held = (outside if link is not None and not link.sandbox else inside).addresses
        if not any((name, address, length) in held for name in ([link.name] if link else inside.links)):
            holder = link.name if link else "the sandbox"
            yield f"prevResult has address {address}/{length}, which {holder} does not hold"


def _agrees(route: PreviousRoute, entry: RouteEntry) -> bool:
    """Whether an entry of the kernel is the route; what the result leaves out may be anything."""
    wanted = ((route.gateway, entry.gateway), (route.table, entry.table), (route.scope, entry.scope))
    return (
        route.destination == entry.destination
        and all(given is None or given == found for given, found in wanted)
        and (route.priority is None or route.priority == entry.priority)
    )
