"""What other programs and people do to the node's kernel."""

from __future__ import annotations

import fcntl
import time
from contextlib import suppress

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests import legacy_lock
from tests.chaos.node import Chaos
from tests.kernel.connection_table import fill
from tests.kernel.namespaces import inside

# --- rules and sets -----------------------------------------------------------------------------


def flush_rules(chaos: Chaos) -> None:
    """All rules of the backend go, everybody's, and the others come back at once."""
    with chaos.blinding():
        _flush(chaos)
        chaos.pause()


def flush_rules_while_away(chaos: Chaos) -> None:
    since = chaos.read()
    chaos.kill()
    with chaos.blinding(since):
        _flush(chaos)
        chaos.pause()
        chaos.start()


def _flush(chaos: Chaos) -> None:
    if chaos.world.backend is not Backend.IPTABLES_LEGACY:
        chaos.run("nft", "flush", "ruleset")
    if not chaos.kernel.is_nftables:
        _flush_tables(chaos)
        for name in chaos.run("ipset", "list", "-n").split():
            if name.startswith("netmgr-"):
                chaos.attempt("ipset", "destroy", name)
    chaos.foreign.make_rules()


def _flush_tables(chaos: Chaos) -> None:
    variant = chaos.world.backend.removeprefix("iptables-")
    for program in (f"iptables-{variant}", f"ip6tables-{variant}"):
        for table in ("mangle", "nat", "raw", "filter"):
            chaos.run(program, "-t", table, "-F")
            chaos.attempt(program, "-t", table, "-X")


def flush_legacy_rules(chaos: Chaos) -> None:
    """On a node of nftables these are nobody's."""
    with chaos.blinding():
        for program in ("iptables-legacy", "ip6tables-legacy"):
            for table in ("mangle", "nat", "raw"):
                chaos.run(program, "-t", table, "-F")
        if chaos.world.backend is Backend.IPTABLES_LEGACY:
            chaos.foreign.make_rules()


def flush_chain(chaos: Chaos) -> None:
    """Rules go, and counters stay."""
    with chaos.blinding():
        if chaos.kernel.is_nftables:
            chain = chaos.chance.choice(("before_srcnat", "before_srcnat6", "prerouting", "output"))
            chaos.run("nft", "flush", "chain", "inet", "netmgr", chain)
        else:
            chain = chaos.chance.choice(("NETMGR-INPUT", "NETMGR-BEFORE_SRCNAT"))
            chaos.run(_iptables(chaos), "-t", "mangle", "-F", chain)


def insert_rule(chaos: Chaos) -> None:
    """Before ours, so that packets leave without being counted."""
    with chaos.blinding():
        if chaos.kernel.is_nftables:
            chaos.run("nft", "insert", "rule", "inet", "netmgr", "before_srcnat", "accept")
        else:
            chaos.run(
                _iptables(chaos), "-t", "mangle", "-I", "NETMGR-BEFORE_SRCNAT", "-j", "ACCEPT"
            )


def remove_filters(chaos: Chaos) -> None:
    """Of the uplink or of a pod's link, where these count."""
    if chaos.world.backend is Backend.LINKS:
        link = chaos.chance.choice(("eth0", _link(chaos) or "eth0"))
        with chaos.blinding():
            chaos.attempt("tc", "qdisc", "delete", "dev", link, "clsact")


def remove_element(chaos: Chaos) -> None:
    """A pod's counter goes, with what it counted."""
    if (name := chaos.one()) and chaos.kernel.has_counting_sets:
        address = str(chaos.pods[name].address(Family.V4))
        with chaos.blinding():
            if chaos.kernel.is_nftables:
                element = f"inet netmgr pod_out4 {{ {address} }}"
                chaos.run("nft", f"delete element {element}")
            else:
                chaos.run("ipset", "del", "netmgr-pod-out4", address)


def zero_counter(chaos: Chaos) -> None:
    """A pod's counter is zeroed, and counts on."""
    if (name := chaos.one()) and chaos.kernel.has_counting_sets:
        address = str(chaos.pods[name].address(Family.V4))
        with chaos.blinding():
            if chaos.kernel.is_nftables:
                element = f"element inet netmgr pod_in4 {{ {address} }}"
                chaos.run("nft", f"delete {element}; add {element}")
            else:
                words = f"-exist add netmgr-pod-in4 {address} packets 0 bytes 0"
                chaos.run("ipset", *words.split())


def add_elements(chaos: Chaos) -> None:
    """Addresses that no pod has."""
    chaos.alters_rules = True
    if not chaos.kernel.has_counting_sets:
        return
    if chaos.kernel.is_nftables:
        chaos.run("nft", "add element inet netmgr pod_out4 { 10.128.16.13, 203.0.113.1 }")
    else:
        chaos.run("ipset", "add", "netmgr-pod-out4", "203.0.113.1")


def widen_internal(chaos: Chaos) -> None:
    """The internet becomes internal, so that nothing counts."""
    with chaos.blinding():
        if chaos.kernel.is_nftables:
            chaos.run("nft", "add element inet netmgr internal4 { 203.0.113.0/24 }")
        else:
            chaos.run("ipset", "add", "netmgr-internal4", "203.0.113.0/24")


def restore_rules(chaos: Chaos) -> None:
    """Everybody's rules as they are, saved and restored, as some programs do at each change."""
    with chaos.blinding():
        if chaos.kernel.is_nftables:
            listed = chaos.run("nft", "-s", "list", "table", "inet", "netmgr")
            path = chaos.node.directory / "saved.nft"
            path.write_text(f"flush table inet netmgr\ndelete table inet netmgr\n{listed}")
            chaos.run("nft", "-f", str(path))
        else:
            variant = chaos.world.backend.removeprefix("iptables-")
            path = chaos.node.directory / "saved.iptables"
            for program in (f"iptables-{variant}", f"ip6tables-{variant}"):
                path.write_text(chaos.run(f"{program}-save"))
                chaos.run(f"{program}-restore", str(path))


def remove_limits(chaos: Chaos) -> None:
    for table in ("netdev netmgr", "inet netmgr_limits"):
        chaos.attempt("nft", "delete", "table", *table.split())


def remove_queues(chaos: Chaos) -> None:
    chaos.attempt("ip", "link", "delete", chaos.chance.choice(("netmgr-out", "netmgr-in")))


def hold_lock(chaos: Chaos) -> None:
    """Another program keeps the lock of iptables; pods do not wait for it."""
    with legacy_lock.path().open("a") as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        began = time.monotonic()
        chaos.delete(chaos.add().pod.name)
        assert time.monotonic() - began < 5, "a pod waited for the lock of iptables"


# --- links, routes, settings --------------------------------------------------------------------


def lose_route(chaos: Chaos) -> None:
    if name := chaos.one():
        family = chaos.chance.choice(list(Family))
        address = str(chaos.pods[name].address(family))
        chaos.run("ip", f"-{family.value}", "route", "del", address)


def lose_all_routes(chaos: Chaos) -> None:
    """Every pod's own route. Packets for pods end in the blackholes meanwhile, uncounted."""
    for family in ("-4", "-6"):
        chaos.run("ip", family, "route", "flush", "protocol", "110", "type", "unicast")


def lose_blackholes(chaos: Chaos) -> None:
    for family in ("-4", "-6"):
        chaos.run("ip", family, "route", "flush", "protocol", "110", "type", "blackhole")


def divert_route(chaos: Chaos) -> None:
    """Another program has a route to a pod's address, which wins by its metric."""
    if name := chaos.one():
        address = str(chaos.pods[name].address(Family.V4))
        chaos.run("ip", "route", "replace", address, "dev", "docker0")


def lower_link(chaos: Chaos) -> None:
    if link := _link(chaos):
        chaos.run("ip", "link", "set", link, "down")


def rename_alias(chaos: Chaos) -> None:
    if link := _link(chaos):
        chaos.run("ip", "link", "set", link, "alias", "somebody's")


def add_address(chaos: Chaos) -> None:
    """On a pod's link, where every address is ours or is removed."""
    if link := _link(chaos):
        chaos.run("ip", "address", "add", "192.0.2.77/32", "dev", link)


def rename_link(chaos: Chaos) -> None:
    """The host's end gets another name, so it is nobody's any more; its pod is made again."""
    if name := chaos.one():
        link = _link_of(chaos, name)
        sandbox = chaos.forget(name)
        for command in ("down", "name veth99", "up"):
            chaos.run("ip", "link", "set", link, *command.split())
            link = "veth99" if "name" in command else link
        chaos.pause()
        chaos.node.runtime.delete(sandbox)
        chaos.attempt("ip", "link", "delete", "veth99")


def delete_link(chaos: Chaos) -> None:
    """The host's end is deleted; its pod is made again."""
    if name := chaos.one():
        link = _link_of(chaos, name)
        sandbox = chaos.forget(name)
        chaos.run("ip", "link", "delete", link)
        chaos.pause()
        chaos.node.runtime.delete(sandbox)


def change_mac(chaos: Chaos) -> None:
    """As the plugin tuning does in a chain behind ours, which gives the runtime the new one."""
    if name := chaos.one():
        sandbox, mac = chaos.pods[name], f"02:00:00:00:00:{chaos.chance.randint(1, 255):02x}"
        shown = inside(sandbox.netns, "ip", "-o", "link", "show", "eth0")
        former = shown.partition("ether ")[2].split()[0]
        inside(sandbox.netns, "ip", "link", "set", "eth0", "address", mac)
        cached = chaos.node.runtime._cache_file(sandbox.container_id)
        cached.write_text(cached.read_text().replace(former, mac))


def lose_neighbours(chaos: Chaos) -> None:
    if link := _link(chaos):
        chaos.run("ip", "neighbour", "flush", "dev", link, "nud", "permanent")


def stop_forwarding(chaos: Chaos) -> None:
    family = chaos.chance.choice(("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"))
    chaos.run("sysctl", "-qw", f"{family}=0")


def trust_link(chaos: Chaos) -> None:
    """A pod's link would take router advertisements and redirects."""
    if link := _link(chaos):
        chaos.run(
            "sysctl",
            "-qw",
            f"net.ipv6.conf.{link}.accept_ra=1",
            f"net.ipv4.conf.{link}.accept_redirects=1",
        )


def _link(chaos: Chaos) -> str:
    name = chaos.one()
    return _link_of(chaos, name) if name else ""


def _link_of(chaos: Chaos, name: str) -> str:
    return chaos.kernel.routes()[str(chaos.pods[name].address(Family.V4))]


def _iptables(chaos: Chaos) -> str:
    variant = chaos.world.backend.removeprefix("iptables-")
    return f"{chaos.chance.choice(('iptables', 'ip6tables'))}-{variant}"


# --- the machine's network ----------------------------------------------------------------------


def flap_uplink(chaos: Chaos) -> None:
    with chaos.uplink_restored():
        chaos.run("ip", "link", "set", "eth0", "down")
        chaos.pause(1.0)
        chaos.run("ip", "link", "set", "eth0", "up")


def rename_uplink(chaos: Chaos) -> None:
    with chaos.uplink_restored():
        for name, new in (("eth0", "uplink9"), ("uplink9", "eth0")):
            chaos.run("ip", "link", "set", name, "down")
            chaos.run("ip", "link", "set", name, "name", new)
            chaos.run("ip", "link", "set", new, "up")
            chaos.pause(1.0)


def switch_ipv6(chaos: Chaos) -> None:
    """IPv6 goes off for all links, with its addresses and routes, and comes back."""
    with chaos.uplink_restored():
        chaos.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        chaos.pause(1.0)
        chaos.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0")


def forget_connections(chaos: Chaos) -> None:
    chaos.attempt("conntrack", "-F")


def fill_connections(chaos: Chaos) -> None:
    """The connection table takes no more."""
    fill(chaos.node.namespace)
    chaos.pause(1.0)
    chaos.attempt("conntrack", "-F")


# --- other programs -----------------------------------------------------------------------------


def reload_firewall(chaos: Chaos) -> None:
    chaos.foreign.reload_firewall()


def restart_docker(chaos: Chaos) -> None:
    """It drops what others forward, until somebody allows that again."""
    chaos.faults.has_filter = True
    chaos.foreign.set_policy("DROP")
    chaos.pause()
    chaos.foreign.set_policy("ACCEPT")


def talk_by_another_plugin(chaos: Chaos) -> None:
    chaos.foreign.talk()
