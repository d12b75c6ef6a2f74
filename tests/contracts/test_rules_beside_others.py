"""A hundred reconciles beside other programs' tables, chains, sets and routes, while ours are
damaged every time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from netmgr.dataplane.node_routes import StaticRoutes
from netmgr.prefixes import Address, Prefix
from netmgr.rules.model import Hook
from netmgr.rules.policy import Policy
from tests.contracts.conftest import settled
from tests.fakes.sites import document

pytestmark = [pytest.mark.root, pytest.mark.slow]

POD = Address.parse("10.1.0.5")
ROUNDS = 100
ROUTES = [
    {"to": "10.0.0.0/16", "via": "10.1.255.254"},
    {"to": "fd00::/48", "via": "fd00:1:0:ff::fe"},
]
NODE = document("node", routes=ROUTES)

THEIR_NFT = """
table inet netmgr-services {
    counter hits { packets 11 bytes 1100 }
    set internal4 { type ipv4_addr; flags interval; counter; elements = { 10.1.0.0/24 \
      counter packets 2 bytes 200 }; }
    chain forward {
        type filter hook forward priority mangle; policy accept;
        ip saddr @internal4 counter name hits comment "isolation forward spoke-a spoke-b v4 \
          0123456789ab"
    }
}
table ip6 netmgr {
    chain forward { type filter hook forward priority 7; policy accept; counter packets 9 \
      bytes 900; }
}
# As Tailscale has it: in iptables' own table, and with what iptables has no words for.
table ip filter {
    map verdicts { type ipv4_addr : verdict; elements = { 100.64.0.1 : drop }; }
    chain FORWARD {
        type filter hook forward priority filter; policy accept;
        meta mark & 0x00ff0000 == 0x00040000 ct state { new, related } counter packets 4 bytes 400
        ip saddr vmap @verdicts
    }
}
"""
THEIR_RULES = """*mangle
:THEIRS-NETMGR - [0:0]
[3:300] -A FORWARD -m comment --comment "isolation forward spoke-a spoke-b v4" -j THEIRS-NETMGR
[4:400] -A THEIRS-NETMGR -m set --match-set netmgrs src -j RETURN
COMMIT
*nat
[5:500] -A PREROUTING -d 100.64.1.0/24 -p tcp -m tcp --dport 1 -j NETMAP --to 10.99.0.0/24
COMMIT
*filter
[6:600] -A FORWARD -s 10.2.0.0/16 -d 10.1.0.0/16 -j DROP
COMMIT
"""
THEIR_ROUTES = """
link add theirs type veth peer name others
link set others up
link set theirs up
addr add 10.1.255.1/24 dev theirs
addr add fd00:1:0:ff::1/64 dev theirs nodad
route add 10.5.0.0/16 via 10.1.255.254
route add 10.0.0.0/17 via 10.1.255.253 metric 77
route add 10.0.0.0/16 via 10.1.255.253 table 110
route add fd05::/48 via fd00:1:0:ff::fd
rule add from 10.5.0.0/16 lookup 110
"""


@pytest.fixture
def routes(real_kernel, program) -> Iterator[StaticRoutes]:
    del real_kernel
    program("ip -b -", THEIR_ROUTES)
    with closing(StaticRoutes(NODE.routes)) as made:
        yield made


def damage(kernel, program, number: int) -> int:
    """Harm something of ours, another thing every time; how many sentences it deserves."""
    harm = number % 5
    if harm == 0:
        kernel.lose_rule(Hook.FORWARD, "isolation forward spoke-a spoke-b v4")
    elif harm == 1:
        kernel.lose_element("site_spoke-b4", Prefix.parse("10.130.0.0/16"))
    elif harm == 2:
        kernel.add_rule(Hook.FORWARD)
    elif harm == 3:
        kernel.lose_element("pod_out4", POD)
    else:
        program("ip route del 10.0.0.0/16 proto 110")
    return 1


def theirs(kernel, program) -> str:
    """Everything that is not ours, with its counts."""
    names = ("inet netmgr-services", "ip6 netmgr", "ip filter")
    tables = "".join(program(f"nft -a list table {name}") for name in names)
    filtering = [
        line for line in program("iptables-legacy-save -c -t filter").splitlines() if line[0] != "#"
    ]
    routes = [program(f"ip {family} route show table all") for family in ("-4", "-6")]
    # The kernel makes routes of its own while links come up.
    others = [
        line
        for listed in routes
        for line in listed.splitlines()
        if not re.search("proto (110|kernel)", line)
    ]
    sets = program("ipset save netmgrs")
    everything = "\n".join(
        [kernel.neighbours(), tables, *filtering, *others, program("ip rule"), sets]
    )
    # A built-in chain counts whatever passes; that belongs to nobody.
    return re.sub(r"^(:\S+ ACCEPT) .*$", r"\1", everything, flags=re.MULTILINE)


def test_a_hundred_reconciles_put_ours_right_and_leave_everybody_elses_byte_for_byte(
    real_kernel, routes, program
):
    program("ipset create netmgrs hash:ip counters")
    program("ipset add netmgrs 10.1.0.5 packets 8 bytes 800")
    program("nft -f -", THEIR_NFT)
    program("iptables-legacy-restore --noflush --counters", THEIR_RULES)
    real_kernel.settle_neighbours()
    before = theirs(real_kernel, program)
    rules = settled(real_kernel.backend, Policy.of(NODE), [POD])
    routes.reconcile()
    for number in range(ROUNDS):
        expected = damage(real_kernel, program, number)
        plan = rules.plan([POD])
        rules.apply(plan)
        told = [*plan.repairs, *routes.reconcile()]
        assert len(told) == expected, told
        assert not rules.plan([POD])
    assert theirs(real_kernel, program) == before
    rules.remove()
    with closing(StaticRoutes(())) as none:
        none.reconcile()
    assert theirs(real_kernel, program) == before
