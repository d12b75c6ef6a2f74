"""Compares `prevResult` of a CHECK with the kernel (specification 1.1.0, section 2, "CHECK").

Everything that it lists has to be there as it says. What this attachment made has to be listed, but
for routes, which a later plugin may have removed. What it does not list is ignored:
`Dataplane.check` looks at what is netmgr's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cni.request import Request
from cni.results import Interface, PreviousResult, PreviousRoute
from netmgr.kernel.contents import Contents
from netmgr.kernel.routes import Route
from netmgr.model import Attachment


def differences(
    previous: PreviousResult,
    request: Request,
    attachment: Attachment,
    inside: Contents,
    outside: Contents,
) -> list[str]:
    """Describes everything that differs from what the sandbox and the host have."""
    faults = _missing(previous, request, attachment)
    for link in previous.interfaces:
        faults += _link_faults(link, request, inside, outside)
    faults += _address_faults(previous, request, inside, outside)
    for route in previous.routes:
        # In any table: the plugins `sbr` and `vrf` move routes.
        is_there = any(_agrees(route, entry) for entry in inside.routes)
        if not is_there:
            faults.append(f"prevResult has route {route}, which the sandbox does not")
    return faults


def _missing(previous: PreviousResult, request: Request, attachment: Attachment) -> list[str]:
    """What ADD answered and the result no longer has."""
    faults = []
    present = {link.name for link in previous.interfaces if _is_here(link, request)}
    if request.ifname not in present:
        faults.append(
            f"prevResult has no interface {request.ifname} in the sandbox {request.netns}"
        )
    if attachment.host_link not in {link.name for link in previous.interfaces if not link.sandbox}:
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
        # As text they may differ: one namespace has a bind mount, and a path for each process.
        return Path(link.sandbox).samefile(request.netns)
    except (OSError, ValueError):
        return False


def _is_elsewhere(link: Interface, request: Request) -> bool:
    """Whether an interface is in a sandbox other than the request's."""
    return bool(link.sandbox) and not _is_here(link, request)


def _link_faults(
    link: Interface, request: Request, inside: Contents, outside: Contents
) -> Iterator[str]:
    if link.is_device or _is_elsewhere(link, request):
        # A device is no link of the kernel, and another sandbox is not listed here.
        return
    where = "the sandbox" if link.sandbox else "the host"
    present = (inside if link.sandbox else outside).links.get(link.name)
    if present is None:
        yield f"prevResult has interface {link.name}, which {where} does not"
        return
    mac = present.mac.hex(":")
    if link.mac and link.mac.lower() != mac:
        yield f"prevResult has MAC {link.mac[:40]} of {link.name}, {where} has {mac}"
    # `tuning` may lower it, and up to 1.10 lists the former one. What is longer than the host's end
    # takes would be lost.
    is_lowered = link.sandbox and present.mtu < link.mtu
    if link.mtu and link.mtu != present.mtu and not is_lowered:
        yield f"prevResult has MTU {link.mtu} of {link.name}, {where} has {present.mtu}"


def _address_faults(
    previous: PreviousResult, request: Request, inside: Contents, outside: Contents
) -> Iterator[str]:
    # An address without an interface may be on any one of the sandbox.
    in_sandbox = {(address, length) for _, address, length in inside.addresses}
    for address, length, index in previous.addresses:
        fault = f"prevResult has address {address}/{length}, which"
        if index is None:
            if (address, length) not in in_sandbox:
                yield f"{fault} the sandbox does not hold"
            continue
        link = previous.interfaces[index]
        contents = inside if link.sandbox else outside
        is_held = (link.name, address, length) in contents.addresses
        if not is_held and not _is_elsewhere(link, request):
            yield f"{fault} {link.name} does not hold"


def _agrees(route: PreviousRoute, entry: Route) -> bool:
    """Whether an entry of the kernel is the route; what the result leaves out may be anything."""
    pairs = (
        (route.gateway, entry.gateway),
        (route.table, entry.table),
        (route.scope, entry.scope),
    )
    return (
        route.destination == entry.destination
        and all(listed is None or listed == actual for listed, actual in pairs)
        and (route.priority is None or route.priority == entry.metric)
    )
