"""What is cut off of a netlink answer is an error with a name: never half a value, a wait, or a
fault of ours.
"""

import socket
import struct

import pytest

from netmgr.errors import KernelError
from netmgr.kernel import links, netlink
from netmgr.kernel.links import RTM_NEWLINK
from netmgr.kernel.netlink import NLMSG_DONE, NLMSG_ERROR, Netlink, Operation, attribute

REQUEST = Operation("link dump", links.RTM_GETLINK, netlink.NLM_F_DUMP, b"")
NAME = attribute(3, b"eth0\0")
LINK = struct.pack("=BxHiII", 0, 1, 7, 1, 0) + NAME
OTHER = LINK.replace(b"eth0", b"eth1")


def message(kind, body, sequence=1, flags=0):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


class Answered(Netlink):
    """A socket whose other end is ours: it has answered before it is asked."""

    def __init__(self, *datagrams):
        super().__init__()
        self._socket.close()
        # It is not the first exchange; the number after this one is 1.
        self._sequence = 1 << 31
        self._socket, self._kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 5, 0))
        for datagram in datagrams:
            self._kernel.send(datagram)

    def close(self):
        self._kernel.close()
        super().close()


@pytest.fixture
def answered():
    made = []

    def answer(*datagrams):
        made.append(Answered(*datagrams))
        return made[-1]

    yield answer
    for each in made:
        each.close()


def dump(channel):
    return channel.dump(REQUEST, links.link_of)


def test_what_is_whole_is_read(answered):
    (link,) = dump(answered(message(RTM_NEWLINK, LINK), message(NLMSG_DONE, bytes(4))))
    assert (link.number, link.name, link.up) == (7, "eth0", True)


@pytest.mark.parametrize(("interrupted", "attempts"), [(1, 2), (5, 5)])
def test_a_listing_that_changes_interrupt_is_made_again_up_to_five_times(
    answered, interrupted, attempts
):
    listed = []
    for number in range(1, attempts + 1):
        flags = netlink.NLM_F_DUMP_INTR if number <= interrupted else 0
        link = OTHER if number == attempts else LINK
        listed.append(message(RTM_NEWLINK, link, number, flags))
        listed.append(message(NLMSG_DONE, bytes(4), number))
    assert [link.name for link in dump(answered(*listed))] == ["eth1"]


def test_an_answer_cut_off_anywhere_is_an_error_of_the_kernels(answered):
    whole = message(RTM_NEWLINK, LINK)
    for length in range(1, len(whole)):
        with pytest.raises(KernelError):
            dump(answered(whole[:length]))


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\0"])
def test_an_acknowledgement_without_a_number_is_an_error(answered, body):
    operation = Operation("link set", RTM_NEWLINK, netlink.NLM_F_ACK, b"")
    with pytest.raises(KernelError, match="cut off"):
        answered(message(NLMSG_ERROR, body)).transact([operation])


def test_a_length_below_a_header_ends_at_once(answered):
    with pytest.raises(KernelError, match="netlink message"):
        dump(answered(struct.pack("=IHHII", 3, RTM_NEWLINK, 0, 1, 0)))


def test_an_answer_longer_than_the_buffer_is_not_taken_for_a_shorter_one(answered):
    many = message(RTM_NEWLINK, LINK) * (1 + (1 << 17) // len(message(RTM_NEWLINK, LINK)))
    with pytest.raises(KernelError, match="longer than"):
        dump(answered(many))


@pytest.mark.parametrize(
    "line", ["eth0: 1 2 3", "eth0:", "", " eth0: " + "x " * 16, "eth0: " + "-1 " * 16]
)
def test_a_line_of_proc_net_dev_without_its_figures_is_an_error(tmp_path, line):
    path = tmp_path / "dev"
    path.write_text(f"head\nhead\n{line}\n")
    with pytest.raises(KernelError, match="figures"):
        links.read_carried(path)
