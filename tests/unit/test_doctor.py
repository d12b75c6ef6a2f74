"""What `netmgr doctor` makes of a machine's files and figures."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from cni.installed import Record, record_path
from netmgr.agent.health import doctor, link_managers
from netmgr.documents.diagnostics import Severity
from netmgr.documents.node import Backend, NodeDocument
from netmgr.errors import KernelError, SetupError
from netmgr.findings import Finding
from netmgr.kernel.conntrack import Occupancy
from tests.fakes.rules import FakeBackend
from tests.fakes.sites import document

NOWHERE = Path("/nowhere/node.yaml")
MACHINE = document()


@pytest.fixture
def machine(tmp_path: Path) -> NodeDocument:
    return document(state_dir=str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where systemd and udev have their files."""
    made = tmp_path / "settings"
    made.mkdir()
    for name in ("SYSTEMD", "UDEV"):
        monkeypatch.setattr(link_managers, name, (tmp_path / "none", made))
    return made


def findings_of(check: str, machine: NodeDocument = MACHINE) -> list[Finding]:
    return list(doctor.CHECKS[check](machine))


@pytest.mark.parametrize(
    ("match", "is_taken"),
    [
        *(("[Match]\nName=*\n", 1), ("# all\n[Match]\nName = *\n", 1)),
        ("[Match]\nName=en* nm*\n[Network]\nDHCP=yes\n", 1),
        ("[Match]\nName=en* eth*\n[Network]\nDescription=Name=*\n", 0),
        *(("[Match]\nName=!nm* *\n", 0), ("[Match]\nType=ether\nName=*\n", 0)),
        *(("[Match]\nMACAddress=02:00:00:00:00:01\n", 0), ("[Network]\nName=*\n", 0)),
        *(("[Match]\nName=*\nType\n  ether\n", 0), ("", 0)),
    ],
)
def test_a_network_file_of_systemd_that_takes_pods_links_is_known(
    folder: Path, match: str, is_taken: int
) -> None:
    (folder / "10-all.network").write_text(match)
    (folder / "10-all.link").write_text("[Match]\nName=*\n")
    findings = findings_of("networkd")
    assert [finding.severity for finding in findings] == [Severity.WARNING] * is_taken
    assert all("10-all.network" in finding.message for finding in findings)


ALL_LINKS, MTU = "[Match]\nOriginalName=*\n", "[Link]\nMTUBytes=9000\n"
DEBIANS = "[Link]\nNamePolicy=keep\nMACAddressPolicy=persistent\n"


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        ("a.link", f"{ALL_LINKS}{MTU}Alias=x\n", "alias, mtubytes"),
        ("a.link", f"{ALL_LINKS}[Link]\nName=lan0\n", "name"),
        # Debian's own for every link, which keeps names and addresses that links came with.
        ("99-default.link", ALL_LINKS + DEBIANS, ""),
        ("a.link", "[Match]\nOriginalName=en*\n[Link]\nName=lan0\n", ""),
        ("a.link", f"{ALL_LINKS}Driver=ixgbe\n{MTU}", ""),
        ("a.link", f"[Match]\nOriginalName=!nm* *\n{MTU}", ""),
        ("a.link", "[Link]\nName=lan0\n", ""),
        ("a.link", "no section", ""),
        *(
            ("a.rules", rules, changes)
            for rules, changes in (
                ('SUBSYSTEM=="net", ACTION=="add", ATTR{mtu}="9000"\n', "rule 1"),
                ('# all\nSUBSYSTEM=="net", \\\n KERNEL!="lo", NAME="net0"\n', "rule 2"),
                ('SUBSYSTEM=="net", KERNEL=="eth*|nm*", ATTR{ifalias}="x"\n', "rule 1"),
                ('SUBSYSTEM=="net", KERNEL=="eth*", NAME="net0"\n', ""),
                ('SUBSYSTEM=="net", KERNEL!="nm*", NAME="net0"\n', ""),
                ('SUBSYSTEM=="net", ATTR{address}=="02:00:00:00:00:01", NAME="e"', ""),
                ('SUBSYSTEM=="net", RUN+="/bin/true", ENV{X}="1"\n', ""),
                ('SUBSYSTEM=="block", NAME="x"\n#SUBSYSTEM=="net", NAME="x"\n', ""),
            )
        ),
    ],
)
def test_a_setting_of_udev_that_changes_pods_links_is_known(
    folder: Path, file: str, text: str, changes: str
) -> None:
    (folder / file).write_text(text)
    findings = findings_of("udev")
    assert [finding.severity for finding in findings] == [Severity.WARNING] * bool(changes)
    for finding in findings:
        assert file in finding.message
        assert changes in finding.message
        assert "nm*" in finding.remedy


@pytest.fixture
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes whatever is tried."""
    monkeypatch.setattr(doctor, "_scratch_namespace", lambda: nullcontext(0))
    monkeypatch.setattr(doctor, "Netlink", lambda: nullcontext(SimpleNamespace(transact=list)))
    monkeypatch.setattr(doctor, "would_use", lambda *_: Backend.NFTABLES)


@pytest.mark.usefixtures("_kernel")
def test_a_library_that_is_absent_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: object) -> None:
        raise SetupError("it is not installed; get it with: apt-get install libnftables1")

    monkeypatch.setattr(doctor, "open_kind", refuse)
    monkeypatch.setattr(doctor, "_privileges", lambda _: iter(()))
    monkeypatch.setattr(doctor, "CHECKS", {"kernel": doctor.CHECKS["kernel"]})
    (finding,) = doctor.examine(NOWHERE)["kernel"]
    assert finding.severity is Severity.ERROR
    assert "apt-get install libnftables1" in finding.message


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize(
    "keys",
    [{}, {"limits": [{"pods": "*/*", "internet-out": "1M"}]}, {"limits_by_annotation": True}],
)
def test_what_limits_wait_in_is_examined_where_there_are_limits(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, object]
) -> None:
    lacking = Finding(Severity.ERROR, "no HTB")
    monkeypatch.setattr(doctor, "open_kind", lambda _: FakeBackend())
    monkeypatch.setattr(doctor, "_queues", lambda: iter([lacking]))
    assert findings_of("kernel", document(**keys)) == ([lacking] if keys else [])


def test_modules_that_are_absent_are_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SYS_MODULES", tmp_path)
    for module in ("nf_tables", "nf_conntrack", "nft_ct"):
        (tmp_path / module).mkdir()
    missing = doctor._missing_modules(Backend.NFTABLES)
    assert missing.startswith("modprobe -a nft_fib_inet nft_masq;")
    for module in ("nft_fib_inet", "nft_masq"):
        (tmp_path / module).mkdir()
    assert doctor._missing_modules(Backend.NFTABLES) == ""


def test_a_kernel_without_what_limits_wait_in_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise KernelError("link add probe-ifb up type ifb", 95)

    monkeypatch.setattr(doctor, "Netlink", lambda: nullcontext(SimpleNamespace(transact=refuse)))
    (finding,) = doctor._queues()
    assert finding.severity is Severity.ERROR
    assert "IFB links or no HTB, which `limits` need: link add probe-ifb" in finding.message
    assert finding.remedy.startswith("modprobe -a ifb sch_htb")


@pytest.mark.parametrize(("state", "findings"), [("managed=true\n", 1), ("managed=false\n", 0)])
def test_network_manager_is_named_where_it_manages_pods_links(
    folder: Path, monkeypatch: pytest.MonkeyPatch, state: str, findings: int
) -> None:
    pods = [SimpleNamespace(name="nm0123", number=7), SimpleNamespace(name="eth0", number=2)]
    monkeypatch.setattr(link_managers.links, "read_links", lambda _: pods)
    monkeypatch.setattr(link_managers, "NETWORK_MANAGER", folder)
    (folder / "2").write_text("[device]\nmanaged=true\n")
    (folder / "7").write_text(f"[device]\n{state}")
    assert len(findings_of("network-manager")) == findings


@pytest.mark.parametrize("connections", [800, 801])
def test_a_connection_table_with_little_room_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, connections: int
) -> None:
    monkeypatch.setattr(doctor, "_STATISTICS", Path("/missing"))
    monkeypatch.setattr(doctor.conntrack, "occupancy", lambda: Occupancy(connections, 1000))
    remedies = [finding.remedy for finding in findings_of("room")]
    assert remedies == ["sysctl -w net.netfilter.nf_conntrack_max=2000"] * (connections > 800)


@pytest.mark.parametrize(("entries", "findings"), [(0x2A0, 0), (0x400, 1)])
def test_a_neighbour_table_with_little_room_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int, findings: int
) -> None:
    monkeypatch.setattr(doctor.conntrack, "occupancy", lambda: None)
    monkeypatch.setattr(doctor, "_STATISTICS", tmp_path)
    monkeypatch.setattr(doctor.settings, "sysctls", lambda: tmp_path)
    (tmp_path / "arp_cache").write_text(f"entries  allocs destroys\n{entries:08x}  00000010 0\n")
    limit = tmp_path / "ipv4/neigh/default/gc_thresh3"
    limit.parent.mkdir(parents=True)
    limit.write_text("1024\n")
    remedies = [finding.remedy for finding in findings_of("room")]
    assert remedies == ["sysctl -w net.ipv4.neigh.default.gc_thresh3=4096"] * findings


def test_a_disk_without_room_for_state_is_an_error(
    machine: NodeDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_bavail=16383, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    (finding,) = findings_of("state", machine)
    assert (finding.severity, finding.remedy) == (Severity.ERROR, "make room for 64 MiB")
    full.f_bavail += 1
    assert findings_of("state", machine) == []


def test_switches_that_nobody_can_turn_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.settings, "sysctls", lambda: tmp_path)
    (tmp_path / "ipv4").mkdir()
    (tmp_path / "ipv4/ip_forward").write_text("0\n")
    assert findings_of("settings") == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    (finding,) = findings_of("settings")
    assert finding.severity is Severity.ERROR
    assert finding.remedy.startswith("sysctl -w net.ipv4.ip_forward=1 ")
    (tmp_path / "ipv4/ip_forward").write_text("1\n")
    assert findings_of("settings") == []


def test_another_network_is_named_before_and_a_lost_plugin_after_the_installation(
    machine: NodeDocument, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = tmp_path / "net.d"
    networks.mkdir()
    monkeypatch.setattr(doctor, "DEFAULT_CONF_DIR", networks)
    assert findings_of("plugin", machine) == []
    (networks / "05-other.conflist").write_text("{}")
    (finding,) = findings_of("plugin", machine)
    assert (finding.severity, "05-other.conflist" in finding.message) == (Severity.WARNING, True)
    record = Record(tmp_path / "bin", networks, "netmgr", "netmgr", {})
    record_path(tmp_path).write_bytes(record.encoded())
    (finding,) = findings_of("plugin", machine)
    assert finding.severity is Severity.ERROR
    assert f"{tmp_path}/bin/netmgr is missing" in finding.message


def test_what_cannot_be_examined_is_an_error_and_keeps_no_other_check_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: NodeDocument) -> None:
        raise KernelError("list chains", 1)

    checks = dict.fromkeys(doctor.STANDING, refused)
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setattr(doctor, "_privileges", lambda _: iter(()))
    examined = doctor.examine(NOWHERE)
    assert [len(examined[name]) for name in checks] == [1] * len(checks)
    assert examined["mtu"][0].message == "cannot be examined: list chains: Operation not permitted"
    doctor.report(MACHINE)
    assert caplog.text.count("machine-not-examined") == len(checks)
