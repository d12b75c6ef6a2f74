"""ipsets: the iptables backend's sets and the pods' counters."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Iterable, Sequence
from itertools import chain

from netmgr.errors import KernelError
from netmgr.kernel import ipset
from netmgr.kernel.netlink import NETLINK_NETFILTER, Counted, Netlink, Operation
from netmgr.model import Sample, Sender
from netmgr.prefixes import Address, Prefix
from netmgr.rules.model import IPSET_CAPACITY, Element, SetSpec
from netmgr.rules.observed import sample
from netmgr.rules.transaction import AddElements, RemoveElements

# How long a set may stay busy after the last rule that used it was deleted.
_BUSY_SECONDS, _BUSY_POLL_SECONDS = 2.0, 0.005

# Our sets have this prefix, and no others do.
PREFIX = "netmgr-"

_DIGEST_LENGTH = 8


class IpSets:
    """The sets of ours. Thread-safe; all methods raise KernelError when the kernel refuses."""

    def __init__(self) -> None:
        self._netlink = Netlink(NETLINK_NETFILTER)

    def create(self, spec: SetSpec) -> None:
        kind = _kind(spec)
        revision = self._netlink.query(ipset.ask_revision(kind), ipset.revision_of)
        self._transact([ipset.create(kernel_name(spec.name), kind, revision)])

    def destroy(self, kernel_names: Iterable[str]) -> None:
        """Remove sets that no rule uses, by the kernel's names; a missing one is no error."""
        deadline = time.monotonic() + _BUSY_SECONDS
        for name in kernel_names:
            while True:
                try:
                    self._transact([ipset.destroy(name)], absence=errno.ENOENT)
                    break
                except KernelError as error:
                    # nf_tables lets go of what a deleted rule looked into in a work queue, a grace
                    # period later.
                    if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                        raise
                    time.sleep(_BUSY_POLL_SECONDS)

    def add(self, operations: Iterable[AddElements]) -> None:
        """Add elements; one already there keeps its counter."""
        adding = []
        for operation in operations:
            name = kernel_name(operation.spec.name)
            packets = operation.packets if operation.spec.counts else None
            adding += [ipset.add(name, element, packets) for element in _sorted(operation.elements)]
        self._transact(adding, absence=ipset.ERROR_EXIST)

    def delete(self, operations: Iterable[RemoveElements]) -> None:
        """Remove elements; a missing one is no error."""
        deleting = [
            ipset.delete(kernel_name(operation.spec.name), element)
            for operation in operations
            for element in _sorted(operation.elements)
        ]
        self._transact(deleting, absence=ipset.ERROR_EXIST)

    def look(self, specs: Iterable[SetSpec]) -> dict[str, frozenset[Element] | None]:
        """The elements of the sets that exist, by the model's name; None if made otherwise."""
        listings = ((spec, self._list(spec.name)) for spec in specs)
        return {spec.name: _elements(messages, spec) for spec, messages in listings if messages}

    def counts(self, spec: SetSpec) -> list[Counted]:
        """What counts in a set; nothing if it is missing or made otherwise."""
        messages = self._list(spec.name)
        if not messages or ipset.kind_of(messages[0]) != _kind(spec):
            return []
        return [
            counted for message in messages for counted in ipset.counts_of(message, spec.family)
        ]

    def orphans(self, specs: Iterable[SetSpec]) -> frozenset[str]:
        """The kernel's names of our sets that are none of these."""
        names = self._netlink.dump(ipset.list_names(), ipset.name_of)
        ours = frozenset(name for name in names if name.startswith(PREFIX))
        return ours - {kernel_name(spec.name) for spec in specs}

    def find(self, spec: SetSpec, address: Address) -> list[Sample]:
        """The counter of one address, if it exists."""
        # The kernel cannot be asked for one element, but finding it among the bytes is cheap.
        return [
            sample(spec.counter(address), listed.bytes, listed.packets)
            for message in self._list(spec.name)
            for listed in ipset.listed(message, address.packed)
            if listed.element == address.prefix
        ]

    def close(self) -> None:
        self._netlink.close()

    def _list(self, name: str) -> list[bytes]:
        """The messages of a set's listing; none if it is not there."""
        return self._netlink.list_of(ipset.list_set(kernel_name(name)), bytes)

    def _transact(self, operations: Sequence[Operation], absence: int = 0) -> None:
        failures = self._netlink.attempt(operations)
        for operation, failure in failures.items():
            if failure.errno != absence:
                raise _understood(operation, failure)


def _understood(operation: Operation, failure: KernelError) -> KernelError:
    """The error without a number of ipset's own, which would pass for an errno."""
    if failure.errno < ipset.PRIVATE_ERRORS:
        return failure
    # A set that a rule looks into cannot be destroyed; ipset has a number of its own for that.
    known = errno.EBUSY if failure.errno == ipset.ERROR_BUSY else 0
    return KernelError(operation.text, known, f"error {failure.errno} of ipset")


def _elements(messages: Sequence[bytes], spec: SetSpec) -> frozenset[Element] | None:
    """Everything in a set; None if it is made otherwise than it should be."""
    # Only the first message says what the set is.
    if ipset.kind_of(messages[0]) != _kind(spec):
        return None
    if spec.counts is None:
        return frozenset(
            member.element for member in chain.from_iterable(map(ipset.listed, messages))
        )
    listed = chain.from_iterable(ipset.counts_of(message, spec.family) for message in messages)
    return frozenset(Address.unpack(key) for key, _, _ in listed)


def _kind(spec: SetSpec) -> ipset.SetKind:
    kind = "hash:net" if spec.counts is None else "hash:ip"
    return ipset.SetKind(kind, spec.family, IPSET_CAPACITY, spec.counts is not None)


def kernel_name(name: str) -> str:
    """The ipset's name for a set of the model, for example `netmgr-pod-out4` for `pod_out4`.

    A name that would be too long, such as a long site's, ends in a digest instead.
    """
    whole = PREFIX + name.replace("_", "-")
    if len(whole) <= ipset.NAME_LENGTH:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{whole[: ipset.NAME_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"


def _sorted(elements: Iterable[Element]) -> list[Address | Prefix]:
    # No ipset has senders.
    return sorted(element for element in elements if not isinstance(element, Sender))
