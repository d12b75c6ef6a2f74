"""What came of a preflight: each check's result, what mends it, and the text for Kubernetes (pure).

A check passes if it passes toward one machine of a group (`targets`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from netmgr.documents.preflight import Unmeasured
from netmgr.prefixes import Address, Family, Prefix
from netmgr.preflight.dns import Knowledge
from netmgr.preflight.targets import Group
from netmgr.preflight.tcp import Attempt, TcpEnding
from netmgr.preflight.throughput import Throughput

# Bytes that a kubelet takes for a container's termination message.
LONGEST_TEXT = 4096


class CheckOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNMEASURED = "unmeasured"


class CheckResult(NamedTuple):
    """One check of one thing: what was found, and what mends it."""

    check: str
    subject: str
    outcome: CheckOutcome = CheckOutcome.PASSED
    message: str = ""
    remedy: str = ""

    def failed(self, message: str, remedy: str) -> CheckResult:
        return self._replace(outcome=CheckOutcome.FAILED, message=message, remedy=remedy)

    def unmeasured(self, message: str) -> CheckResult:
        return self._replace(outcome=CheckOutcome.UNMEASURED, message=message)


@dataclass(frozen=True, slots=True)
class PreflightReport:
    skipped: str = ""
    """Why nothing was probed; empty if something was."""
    results: tuple[CheckResult, ...] = ()
    """Of every check, in the order of the checks."""
    unmeasured: Unmeasured = Unmeasured.PASS
    """What a check means that could not be carried out."""

    @property
    def failures(self) -> list[CheckResult]:
        """What keeps the node from running pods: what failed, then what could not be measured."""
        bad = [CheckOutcome.FAILED]
        if self.unmeasured is Unmeasured.FAIL:
            bad.append(CheckOutcome.UNMEASURED)
        return [result for outcome in bad for result in self.results if result.outcome is outcome]

    def text(self) -> str:
        """The run in a few lines, what failed first, in as many bytes as a kubelet takes."""
        if self.skipped:
            return _cut(f"skipped: {self.skipped}")
        failures = self.failures
        lines = [_line(failure) for failure in failures] or [f"passed: {len(self.results)} checks"]
        others = [result for result in self.results if result.outcome is CheckOutcome.UNMEASURED]
        lines += [f"not measured: {_line(result)}" for result in others if result not in failures]
        return _cut("\n".join(lines))


def _line(result: CheckResult) -> str:
    line = f"{result.check} of {result.subject}: {result.message}"
    return f"{line}; {result.remedy}" if result.remedy else line


def _cut(text: str) -> str:
    # The cut may be in the middle of a character.
    return text.encode()[:LONGEST_TEXT].decode(errors="ignore")


class PathMtu(NamedTuple):
    size: int
    """Bytes of the largest packet that was answered."""
    fragment: int = 0
    """Bytes of the fragments that its answer came in; 0 where it came whole."""


@dataclass(slots=True)
class Answers:
    """Which machines answer at all, to this machine's own address."""

    by_echo: set[Address] = field(default_factory=set)
    """To echoes."""
    by_tcp: set[Address] = field(default_factory=set)
    """To TCP alone."""

    def of(self, group: Group) -> set[Address]:
        """The machines of a group that answer in whatever way."""
        return (self.by_echo | self.by_tcp) & set(group.machines)


def of_reach(group: Group, answers: Answers, port: int) -> CheckResult:
    check = CheckResult("reach", str(group))
    if answers.of(group):
        return check
    return check.failed(
        f"none of them answers, neither to echoes nor at TCP port {port}",
        "see to this node's addresses, routes and security groups, and whether they run",
    )


def of_range(
    block: Prefix, source: Address, group: Group, returned: Collection[Address]
) -> CheckResult:
    """Whether answers to an address of a range come to this node; the group answers otherwise."""
    check = CheckResult("routes", f"{block} by {group.kind}")
    if set(returned) & set(group.machines):
        return check
    return check.failed(
        f"answers of {group} come to this node's own address, and not to {source}",
        f"have the network deliver {block} to this node: a route, or IP configurations of its "
        "interface; and let it send with these sources",
    )


def of_mtu(group: Group, mtu: int, paths: Mapping[Address, PathMtu]) -> CheckResult:
    """Whether packets of the pods' MTU pass both ways; `paths` to those that answer echoes."""
    check = CheckResult("mtu", f"{mtu} bytes to {group}")
    known = [paths[machine] for machine in group.machines if machine in paths]
    if not known:
        return check.unmeasured("none of them answers echoes")
    best = max(known, key=lambda path: (path.size >= mtu, not path.fragment, path.size))
    if best.size >= mtu and not best.fragment:
        return check
    if best.size >= mtu:
        carried = best.fragment
        message = f"such packets arrive, and their answers come back in fragments of {carried}"
    else:
        carried = best.size
        message = f"packets of up to {carried} bytes are answered, larger ones are lost"
    return check.failed(
        message, f"raise the MTU on the way to {mtu}, or set mtu: {carried} in node.yaml"
    )


def of_loss(group: Group, most: float, losses: Mapping[Address, float]) -> CheckResult:
    """Whether few enough echoes are lost; `losses`: shares by answering machine."""
    check = CheckResult("loss", str(group))
    known = [losses[machine] for machine in group.machines if machine in losses]
    if not known:
        return check.unmeasured("none of them answers echoes")
    message = f"{min(known):.1%} of echoes are lost"
    if min(known) <= most:
        return check._replace(message=message)
    return check.failed(
        f"{message}, and at most {most:.1%} may be",
        "`ip -s -s link` shows whether this node's interface drops them; else see to the network",
    )


def of_egress(endings: Mapping[Attempt, TcpEnding]) -> list[CheckResult]:
    """Whether a connection into the internet is accepted, one of each family."""
    of_family: dict[Family, dict[Attempt, TcpEnding]] = {}
    for attempt, ending in endings.items():
        of_family.setdefault(attempt.target.address.family, {})[attempt] = ending
    return [_of_egress(tried) for tried in of_family.values()]


def _of_egress(tried: Mapping[Attempt, TcpEnding]) -> CheckResult:
    check = CheckResult("egress", ", ".join(str(endpoint) for endpoint, _ in tried))
    if any(ending.is_accepted for ending in tried.values()):
        return check
    (_, source), ending = next(iter(tried.items()))
    origin = "this node's own address" if source is None else str(source)
    remedy = "see to the way to the internet (NAT gateway, routes, firewall)"
    if source is not None:
        remedy += ", which has to translate pods' addresses"
    return check.failed(f"no connection from {origin}: {ending.fault}", remedy)


def of_dns(name: str, answers: Mapping[str, Knowledge]) -> CheckResult:
    """Whether a nameserver of the machine knows an address of a name."""
    check = CheckResult("dns", name)
    shown = ", ".join(f"{server} {knowledge}" for server, knowledge in answers.items())
    if not answers:
        return check.failed("/etc/resolv.conf names no nameserver", "see to /etc/resolv.conf")
    if Knowledge.ADDRESS in answers.values():
        return check._replace(message=shown if Knowledge.SILENCE in answers.values() else "")
    return check.failed(shown, "see to the nameservers of /etc/resolv.conf and the way to them")


def of_throughput(floor: int, throughput: Throughput) -> CheckResult:
    check = CheckResult("throughput", f"{rate(floor)} from peers")
    if not throughput.rates:
        peer, fault = next(iter(throughput.faults.items()), (None, "there is no other peer"))
        return check.unmeasured(f"{peer}: {fault}" if peer else fault)
    shown = ", ".join(f"{rate(bits)} from {peer}" for peer, bits in throughput.rates.items())
    if max(throughput.rates.values()) >= floor:
        return check._replace(message=shown)
    return check.failed(
        shown,
        "see to this node's interface (`ethtool`, its speed and errors) and to its instance type",
    )


def rate(bits: float) -> str:
    """Bits a second, for people."""
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= factor:
            return f"{bits / factor:.4g} {unit}"
    return f"{bits:.0f} bit/s"
