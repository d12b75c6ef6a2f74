"""What `netmgr doctor` makes of a machine's files and figures."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cni.installed import Record, record_path
from netmgr.agent import doctor
from netmgr.documents.diagnostics import Severity
from netmgr.documents.node import NodeDocument
from netmgr.errors import KernelError
from netmgr.kernel.conntrack import Occupancy
from tests.builders import NODE_KEYS


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
    monkeypatch.setattr(doctor, "_NETWORKD", (tmp_path / "none", tmp_path))
    (tmp_path / "10-all.network").write_text(match)
    (tmp_path / "10-all.link").write_text("[Match]\nName=*\n")
    found = list(doctor.CHECKS["networkd"](machine))
    assert [one.severity for one in found] == [Severity.WARNING] * is_taken
    assert all("10-all.network" in one.message for one in found)


@pytest.mark.parametrize(("state", "findings"), [("managed=true\n", 1), ("managed=false\n", 0)])
def test_network_manager_is_named_where_it_manages_pods_links(
    machine: doctor.Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    findings: int,
) -> None:
    pods = [SimpleNamespace(name="nm0123", number=7), SimpleNamespace(name="eth0", number=2)]
    monkeypatch.setattr(doctor.links, "read_links", lambda _: pods)
    monkeypatch.setattr(doctor, "_NETWORK_MANAGER", tmp_path)
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

    checks = {
        "mtu": refused,
        "room": refused,
        "firewall": refused,
        "networkd": refused,
        "network-manager": refused,
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setattr(doctor, "_privileges", lambda _: iter(()))
    found = doctor.examine(machine.path)
    assert {name: len(each) for name, each in found.items() if name in checks} == dict.fromkeys(
        checks, 1
    )
    assert found["mtu"][0].message == "cannot be examined: list chains: Operation not permitted"
    doctor.report(machine.path, machine.document)
    assert caplog.text.count("machine-not-examined") == len(checks)
