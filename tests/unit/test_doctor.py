"""What `netmgr doctor` makes of a machine's files and figures."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from cni.installed import Record, record_path
from netmgr.agent import doctor, link_managers
from netmgr.documents.diagnostics import Severity
from netmgr.documents.node import Backend, NodeDocument
from netmgr.errors import KernelError, SetupError
from netmgr.kernel.conntrack import Occupancy
from tests.builders import NODE_KEYS
from tests.fakes.agent_socket import snapshot
from tests.fakes.rules import FakeBackend


@pytest.fixture
def machine(tmp_path: Path) -> doctor.Machine:
    keys = {"node": {"name": "n"}, "ranges": ["10.0.0.0/24"], "state_dir": str(tmp_path)}
    return doctor.Machine(tmp_path / "node.yaml", NodeDocument.model_validate(NODE_KEYS | keys))


@pytest.mark.parametrize(
    ("match", "is_taken"),
    [
        ("[Match]\nName=*\n", 1),
        ("[Match]\nName=en* nm*\n[Network]\nDHCP=yes\n", 1),
        ("# all\n[Match]\nName = *\n", 1),
        ("[Match]\nName=en* eth*\n[Network]\nDescription=Name=*\n", 0),
        ("[Match]\nName=!nm* *\n", 0),
        ("[Match]\nType=ether\nName=*\n", 0),
        ("[Match]\nMACAddress=02:00:00:00:00:01\n", 0),
        ("[Network]\nName=*\n", 0),
        ("[Match]\nName=*\nType\n  ether\n", 0),
        ("", 0),
    ],
)
def test_a_network_file_of_systemd_that_takes_pods_links_is_known(
    machine: doctor.Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    match: str,
    is_taken: int,
) -> None:
    monkeypatch.setattr(link_managers, "SYSTEMD", (tmp_path / "none", tmp_path))
    (tmp_path / "10-all.network").write_text(match)
    (tmp_path / "10-all.link").write_text("[Match]\nName=*\n")
    found = list(doctor.CHECKS["networkd"](machine))
    assert [one.severity for one in found] == [Severity.WARNING] * is_taken
    assert all("10-all.network" in one.message for one in found)


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        ("a.link", "[Match]\nOriginalName=*\n[Link]\nMTUBytes=9000\nAlias=x\n", "alias, mtubytes"),
        ("a.link", "[Match]\nOriginalName=*\n[Link]\nName=lan0\n", "name"),
        # Debian's own for every link, which keeps names and addresses that links came with.
        (
            "99-default.link",
            "[Match]\nOriginalName=*\n[Link]\nNamePolicy=keep\nMACAddressPolicy=persistent\n",
            "",
        ),
        ("a.link", "[Match]\nOriginalName=en*\n[Link]\nName=lan0\n", ""),
        ("a.link", "[Match]\nOriginalName=*\nDriver=ixgbe\n[Link]\nMTUBytes=9000\n", ""),
        ("a.link", "[Match]\nOriginalName=!nm* *\n[Link]\nMTUBytes=9000\n", ""),
        ("a.link", "[Link]\nName=lan0\n", ""),
        ("a.link", "no section", ""),
        ("a.rules", 'SUBSYSTEM=="net", ACTION=="add", ATTR{mtu}="9000"\n', "rule 1"),
        ("a.rules", '# all\nSUBSYSTEM=="net", \\\n KERNEL!="lo", NAME="net0"\n', "rule 2"),
        ("a.rules", 'SUBSYSTEM=="net", KERNEL=="eth*|nm*", ATTR{ifalias}="x"\n', "rule 1"),
        ("a.rules", 'SUBSYSTEM=="net", KERNEL=="eth*", NAME="net0"\n', ""),
        ("a.rules", 'SUBSYSTEM=="net", KERNEL!="nm*", NAME="net0"\n', ""),
        (
            "a.rules",
            'SUBSYSTEM=="net", DRIVERS=="?*", ATTR{address}=="02:00:00:00:00:01", NAME="e"',
            "",
        ),
        ("a.rules", 'SUBSYSTEM=="net", RUN+="/bin/true", ENV{X}="1"\n', ""),
        ("a.rules", 'SUBSYSTEM=="block", NAME="x"\n#SUBSYSTEM=="net", NAME="x"\n', ""),
    ],
)
def test_a_setting_of_udev_that_changes_pods_links_is_known(
    machine: doctor.Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    text: str,
    changes: str,
) -> None:
    monkeypatch.setattr(link_managers, "SYSTEMD", (tmp_path,))
    monkeypatch.setattr(link_managers, "UDEV", (tmp_path / "none", tmp_path))
    (tmp_path / file).write_text(text)
    found = list(doctor.CHECKS["udev"](machine))
    assert [one.severity for one in found] == [Severity.WARNING] * bool(changes)
    for one in found:
        assert file in one.message
        assert changes in one.message
        assert "nm*" in one.remedy


def test_the_machines_own_udev_changes_no_links_of_pods(machine: doctor.Machine) -> None:
    assert list(doctor.CHECKS["udev"](machine)) == []


@pytest.fixture
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes whatever is tried."""
    monkeypatch.setattr(doctor, "_scratch_namespace", lambda: nullcontext(0))
    monkeypatch.setattr(doctor, "Netlink", lambda: nullcontext(SimpleNamespace(transact=list)))
    monkeypatch.setattr(doctor, "would_use", lambda *_: Backend.NFTABLES)


@pytest.mark.usefixtures("_kernel")
def test_a_library_that_is_absent_is_named_with_its_package(
    machine: doctor.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise SetupError("it is not installed; get it with: apt-get install libnftables1")

    monkeypatch.setattr(doctor, "open_kind", refuse)
    monkeypatch.setattr(doctor, "_privileges", lambda _: iter(()))
    monkeypatch.setattr(doctor, "CHECKS", {"kernel": doctor.CHECKS["kernel"]})
    (found,) = doctor.examine(machine.path)["kernel"]
    assert found.severity is Severity.ERROR
    assert "apt-get install libnftables1" in found.message


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize(
    "keys",
    [{}, {"limits": [{"pods": "*/*", "internet-out": "1M"}]}, {"limits_by_annotation": True}],
)
def test_what_limits_wait_in_is_examined_where_there_are_limits(
    machine: doctor.Machine, monkeypatch: pytest.MonkeyPatch, keys: dict[str, object]
) -> None:
    lacking = doctor.Finding(Severity.ERROR, "no HTB")
    monkeypatch.setattr(doctor, "open_kind", lambda _: FakeBackend())
    monkeypatch.setattr(doctor, "_queues", lambda: iter([lacking]))
    given = {"node": {"name": "n"}, "ranges": ["10.0.0.0/24"]}
    document = NodeDocument.model_validate(NODE_KEYS | given | keys)
    found = list(doctor.CHECKS["kernel"](machine._replace(document=document)))
    assert found == ([lacking] if keys else [])


def test_modules_that_are_absent_are_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SYS_MODULES", tmp_path)
    for module in ("nf_tables", "nf_conntrack", "nft_ct"):
        (tmp_path / module).mkdir()
    assert doctor._missing_modules(Backend.NFTABLES).startswith(
        "modprobe -a nft_fib_inet nft_masq;"
    )
    for module in ("nft_fib_inet", "nft_masq"):
        (tmp_path / module).mkdir()
    assert doctor._missing_modules(Backend.NFTABLES) == ""


def test_a_kernel_without_what_limits_wait_in_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise KernelError("link add probe-ifb up type ifb", 95)

    monkeypatch.setattr(doctor, "Netlink", lambda: nullcontext(SimpleNamespace(transact=refuse)))
    (found,) = doctor._queues()
    assert found.severity is Severity.ERROR
    assert "IFB links or no HTB, which `limits` need: link add probe-ifb" in found.message
    assert found.remedy.startswith("modprobe -a ifb sch_htb")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (30, "(last within this minute)"),
        (150, "(last 2 minutes ago)"),
        (200_000, "(last 2 days ago)"),
    ],
)
def test_how_long_the_last_gap_is_ago_is_said(
    monkeypatch: pytest.MonkeyPatch, seconds: float, shown: str
) -> None:
    monkeypatch.setattr(doctor.time, "time", lambda: 1e9 + seconds)
    given = snapshot(1, 1)
    given["gaps"] = [{"reason": "reboot", "count": 3, "seconds": 1.0, "last": 1e9}]
    (found,) = doctor._gaps(given)
    assert found.message == f"gaps since the ledger began: reboot 3 times {shown}"
    del given["gaps"][0]["last"]
    (found,) = doctor._gaps(given)
    assert found.message == "gaps since the ledger began: reboot 3 times"


@pytest.mark.parametrize(("state", "findings"), [("managed=true\n", 1), ("managed=false\n", 0)])
def test_network_manager_is_named_where_it_manages_pods_links(
    machine: doctor.Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    findings: int,
) -> None:
    pods = [SimpleNamespace(name="nm0123", number=7), SimpleNamespace(name="eth0", number=2)]
    monkeypatch.setattr(link_managers.links, "read_links", lambda _: pods)
    monkeypatch.setattr(link_managers, "NETWORK_MANAGER", tmp_path)
    (tmp_path / "2").write_text("[device]\nmanaged=true\n")
    (tmp_path / "7").write_text(f"[device]\n{state}")
    assert len(list(doctor.CHECKS["network-manager"](machine))) == findings


def test_a_connection_table_with_little_room_is_named_with_the_command(
    machine: doctor.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_STATISTICS", Path("/missing"))
    for connections, findings in ((800, 0), (801, 1)):
        monkeypatch.setattr(
            doctor.conntrack, "occupancy", lambda now=connections: Occupancy(now, 1000)
        )
        found = list(doctor.CHECKS["room"](machine))
        assert len(found) == findings
    assert found[0].remedy == "sysctl -w net.netfilter.nf_conntrack_max=2000"


@pytest.mark.parametrize(("entries", "findings"), [(0x2A0, 0), (0x400, 1)])
def test_a_neighbour_table_with_little_room_is_named_with_the_command(
    machine: doctor.Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: int,
    findings: int,
) -> None:
    monkeypatch.setattr(doctor.conntrack, "occupancy", lambda: None)
    monkeypatch.setattr(doctor, "_STATISTICS", tmp_path)
    monkeypatch.setattr(doctor.settings, "sysctls", lambda: tmp_path)
    (tmp_path / "arp_cache").write_text(f"entries  allocs destroys\n{entries:08x}  00000010 0\n")
    limit = tmp_path / "ipv4/neigh/default/gc_thresh3"
    limit.parent.mkdir(parents=True)
    limit.write_text("1024\n")
    found = list(doctor.CHECKS["room"](machine))
    assert [one.remedy for one in found] == [
        "sysctl -w net.ipv4.neigh.default.gc_thresh3=4096"
    ] * findings


def test_a_disk_without_room_for_state_is_an_error(
    machine: doctor.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_bavail=16383, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    (found,) = doctor.CHECKS["state"](machine)
    assert (found.severity, found.remedy) == (Severity.ERROR, "make room for 64 MiB")
    full.f_bavail += 1
    assert list(doctor.CHECKS["state"](machine)) == []


def test_switches_that_nobody_can_turn_are_errors(
    machine: doctor.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.settings, "sysctls", lambda: tmp_path)
    (tmp_path / "ipv4").mkdir()
    (tmp_path / "ipv4/ip_forward").write_text("0\n")
    assert list(doctor.CHECKS["settings"](machine)) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    (found,) = doctor.CHECKS["settings"](machine)
    assert found.severity is Severity.ERROR
    assert found.remedy.startswith("sysctl -w net.ipv4.ip_forward=1 ")
    (tmp_path / "ipv4/ip_forward").write_text("1\n")
    assert list(doctor.CHECKS["settings"](machine)) == []


def test_another_network_is_named_before_and_a_lost_plugin_after_the_installation(
    machine: doctor.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = tmp_path / "net.d"
    networks.mkdir()
    monkeypatch.setattr(doctor, "DEFAULT_CONF_DIR", networks)
    assert list(doctor.CHECKS["plugin"](machine)) == []
    (networks / "05-other.conflist").write_text("{}")
    (found,) = doctor.CHECKS["plugin"](machine)
    assert (found.severity, "05-other.conflist" in found.message) == (Severity.WARNING, True)
    record = Record(tmp_path / "bin", networks, "netmgr", "netmgr", {})
    record_path(tmp_path).write_bytes(record.encoded())
    (found,) = doctor.CHECKS["plugin"](machine)
    assert found.severity is Severity.ERROR
    assert f"{tmp_path}/bin/netmgr is missing" in found.message


def test_what_cannot_be_examined_is_an_error_and_keeps_no_other_check_back(
    machine: doctor.Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: doctor.Machine) -> None:
        raise KernelError("list chains", 1)

    checks = dict.fromkeys(doctor.STANDING, refused)
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setattr(doctor, "_privileges", lambda _: iter(()))
    found = doctor.examine(machine.path)
    assert {name: len(each) for name, each in found.items() if name in checks} == dict.fromkeys(
        checks, 1
    )
    assert found["mtu"][0].message == "cannot be examined: list chains: Operation not permitted"
    doctor.report(machine.path, machine.document)
    assert caplog.text.count("machine-not-examined") == len(checks)
