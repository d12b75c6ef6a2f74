"""Changes of single elements as messages of our own: all that ADD and DEL do to the rules.

Before libnftables changes an element, it lists all tables, chains and sets of the machine and the
elements of our interval sets, in 15 to 25 round trips. The kernel needs none of that.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

from netmgr.kernel import netlink, nf_tables
from netmgr.kernel.netlink import Netlink
from netmgr.model import Sample, Sender
from netmgr.prefixes import Address, Prefix
from netmgr.rules.model import Sets
from netmgr.rules.nft_text import TABLE
from netmgr.rules.observed import sample
from netmgr.rules.transaction import AddElements, Operation, RemoveElements

# The table, as messages name it.
NAME = TABLE.removeprefix("inet ")
# IFNAMSIZ of <linux/if.h>.
_LINK_NAME = 16


def encoded(operations: Sequence[Operation]) -> list[netlink.Operation] | None:
    """The messages of a transaction; None if it changes more than elements of one address each."""
    # Everything else is left to libnftables, which knows how intervals may lie.
    messages: list[netlink.Operation] = []
    for operation in operations:
        if not isinstance(operation, AddElements | RemoveElements):
            return None
        prefixes = (element for element in operation.elements if isinstance(element, Prefix))
        if not all(prefix.is_address for prefix in prefixes):
            return None
        messages += _messages(operation)
    return messages


def _key(element: Address | Sender) -> bytes:
    if isinstance(element, Address):
        return element.packed
    return element.link.encode().ljust(_LINK_NAME, b"\0") + element.address.packed


def _messages(operation: AddElements | RemoveElements) -> Iterator[netlink.Operation]:
    name = operation.spec.name
    keys = [_key(element) for element in operation.elements if not isinstance(element, Prefix)]
    prefixes = [element for element in operation.elements if isinstance(element, Prefix)]
    packets = operation.packets if isinstance(operation, AddElements) else 0
    yield from nf_tables.add_elements(NAME, name, keys, packets)
    yield from (_interval(nf_tables.NEW_ELEMENTS, name, prefix) for prefix in prefixes)
    # Added first, since deleting an element that is not there fails the whole transaction.
    if isinstance(operation, RemoveElements):
        yield from nf_tables.delete_elements(NAME, name, keys)
        yield from (_interval(nf_tables.DELETE_ELEMENTS, name, prefix) for prefix in prefixes)


def _interval(kind: int, name: str, prefix: Prefix) -> netlink.Operation:
    # A prefix of full length is in a set of prefixes, as an interval that ends before the next one.
    behind = Address(prefix.family, prefix.last + 1)
    return nf_tables.change_interval(kind, NAME, name, prefix.network.packed, behind.packed)


def read(channel: Netlink, pods: Sets) -> list[Sample]:
    """The counters of these elements, as far as they exist."""
    wanted = [(spec, address) for spec, members in pods.items() for address in members]
    requests = [
        nf_tables.get_element(NAME, spec.name, address.packed)
        for spec, address in wanted
        if isinstance(address, Address)
    ]
    answers = channel.query_each(requests, nf_tables.counts_of, absence=[errno.ENOENT])
    samples: list[Sample] = []
    for (spec, address), answer in zip(wanted, answers, strict=True):
        for _, packets, octets in answer or ():
            samples.append(sample(spec.counter(address), octets, packets))
    return samples
