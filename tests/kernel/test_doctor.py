"""`netmgr doctor` on machines that are sound, and on machines that lack something."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.documents.node import Backend
from tests.builders import NODE_KEYS
from tests.kernel.common import ONLY_NFTABLES, kernel_state, own_network
from tests.kernel.namespaces import inside
from tests.lab.nodes import LabNode
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

WORLD = {"nodes": 1, "exporters": False}
Findings = dict[str, list[dict[str, str]]]
Doctor = Callable[..., tuple[int, Findings]]
NODE = {"node": {"name": "n"}, "ranges": ["10.64.0.0/24", "2001:db8::/120"]}


@pytest.fixture
def machine() -> Iterator[Path]:
    with own_network("doctor") as made:
        yield made


def run(namespace: Path, document: Path, *options: str, before: tuple[str, ...] = ()) -> Any:
    command = ["nsenter", f"--net={namespace}", *before, sys.executable, "-m", "netmgr", "doctor"]
    command += ["-c", str(document), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


def examine(namespace: Path, document: Path, before: tuple[str, ...] = ()) -> tuple[int, Findings]:
    """Exit code, and findings of the checks that found anything."""
    done = run(namespace, document, "-o", "json", before=before)
    assert done.stderr == ""
    findings = json.loads(done.stdout)["checks"]
    return done.returncode, {check: listed for check, listed in findings.items() if listed}


@pytest.fixture
def doctor(machine: Path, tmp_path: Path) -> Doctor:
    """What is found for a document of these keys."""

    def examined(*, before: tuple[str, ...] = (), **keys: Any) -> tuple[int, Findings]:
        document = tmp_path / "node.yaml"
        places = {"state_dir": str(tmp_path / "state"), "run_dir": str(tmp_path / "run")}
        document.write_text(yaml.safe_dump(NODE_KEYS | NODE | places | keys, sort_keys=False))
        code, findings = examine(machine, document, before)
        # Whether runtimes find the plugin is a matter of this machine's own /etc/cni.
        findings.pop("plugin", None)
        return code, findings

    return examined


@pytest.mark.parametrize(
    "backend", [Backend.NFTABLES, Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT], ids=str
)
def test_a_sound_machine_has_no_finding_and_stays_as_it_is(
    doctor: Doctor, machine: Path, tmp_path: Path, backend: Backend
) -> None:
    tables = ("cat", "/proc/net/ip_tables_names")
    before = kernel_state(machine), inside(machine, *tables)
    # With limits, which need more of the kernel.
    limits = [{"pods": "*/*", "internet-out": "100M"}]
    assert doctor(backend=backend.value, limits=limits) == (0, {})
    assert (kernel_state(machine), inside(machine, *tables)) == before
    assert [path.name for path in tmp_path.iterdir()] == ["node.yaml"]


def test_a_document_that_is_wrong_or_missing_is_a_finding(
    doctor: Doctor, machine: Path, tmp_path: Path
) -> None:
    code, found = doctor(node={"name": "n", "addresses": ["10.9.9.9"]})
    (finding,) = found["document"]
    assert (code, finding["severity"]) == (1, "error")
    assert "no link of this machine has 10.9.9.9" in finding["message"]
    done = run(machine, tmp_path / "missing.yaml")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^warning +document", done.stdout, re.MULTILINE)
    assert "→ make it, or name another with --config" in done.stdout


OWN_CHAIN = """
nft add table inet fw
nft add chain inet fw f '{ type filter hook forward priority 0; policy drop; }'
nft add rule inet fw f ip saddr 192.0.2.1 drop
"""
POLICY = "{0} -P FORWARD DROP; {0} -A FORWARD -s {1} -j DROP"
RULE = "{0} -A FORWARD -s {1} -j DROP; {0} -A FORWARD -j {2}"


@pytest.mark.parametrize(
    ("setup", "what", "listing"),
    [
        (OWN_CHAIN, "the policy of inet fw f", "nft list chain inet fw f"),
        (
            f"{OWN_CHAIN} nft add rule inet fw f counter reject",
            "a rule of inet fw f",
            "nft list chain inet fw f",
        ),
        *(
            (setup.format(program, source, verdict), f"{what} of {chain}", f"{program} -S FORWARD")
            for program, chain, source, verdict in (
                ("iptables-legacy", "iptables-legacy", "192.0.2.1", "REJECT"),
                ("ip6tables-legacy", "ip6tables-legacy", "2001:db8::1", "DROP"),
                ("iptables-nft", "ip filter FORWARD", "192.0.2.1", "DROP"),
            )
            for what, setup in {"the policy": POLICY, "a rule": RULE}.items()
        ),
    ],
)
def test_a_chain_that_drops_what_is_forwarded_is_named_with_commands_that_pass_no_rule_by(
    doctor: Doctor, machine: Path, setup: str, what: str, listing: str
) -> None:
    inside(machine, "sh", "-ec", setup)
    code, found = doctor()
    (finding,) = found.pop("firewall")
    assert (code, found, finding["severity"]) == (0, {}, "warning")
    assert finding["message"].startswith(f"{what} drops what pods exchange, ")
    inside(machine, "sh", "-ec", finding["remedy"].partition("or: ")[2])
    assert doctor() == (0, {})
    before, ours, behind = inside(machine, *listing.split()).partition("nm")
    assert ours
    assert "192.0.2.1" in before or "2001:db8::1" in before
    if what.startswith("a rule"):
        assert re.search("drop|reject", behind, re.IGNORECASE)


OURS_BEHIND = """
{0} -N NETMGR-FORWARD
{0} -A FORWARD -d 192.0.2.1 -j ACCEPT
{0} -A FORWARD -j NETMGR-FORWARD
"""


@pytest.mark.parametrize("backend", [Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT], ids=str)
def test_a_rule_before_ours_is_named_with_a_command_that_keeps_it(
    doctor: Doctor, machine: Path, backend: Backend
) -> None:
    inside(machine, "sh", "-ec", OURS_BEHIND.format(f"{backend} -w -t mangle"))
    code, found = doctor(backend=backend.value)
    (finding,) = found.pop("order")
    assert (code, found, finding["severity"]) == (0, {}, "warning")
    rule = f"{backend} -t mangle -A FORWARD -d 192.0.2.1/32 -j ACCEPT"
    assert finding["message"].endswith(rule)
    inside(machine, "sh", "-ec", finding["remedy"].partition("behind: ")[2])
    assert doctor(backend=backend.value) == (0, {})
    assert "192.0.2.1" in inside(machine, backend, "-t", "mangle", "-S", "FORWARD")


def test_a_chain_that_drops_other_packets_is_no_finding(doctor: Doctor, machine: Path) -> None:
    inside(machine, "iptables-legacy", "-A", "FORWARD", "-s", "192.0.2.1", "-j", "DROP")
    inside(machine, "iptables-legacy", "-P", "INPUT", "DROP")
    assert doctor() == (0, {})


def test_an_mtu_that_the_uplink_does_not_have_is_named(doctor: Doctor, machine: Path) -> None:
    inside(machine, "ip", "link", "add", "up0", "mtu", "1400", "type", "veth", "peer", "far0")
    code, found = doctor(mtu=1500, node={"name": "n", "uplink": "up0"})
    assert code == 0
    assert "those of up0 1400" in found["mtu"][0]["message"]


def test_state_of_a_newer_version_is_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with closing(sqlite3.connect(tmp_path / "state" / "ledger.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 99")
    code, found = doctor()
    assert code == 1
    assert "a newer netmgr wrote it (schema 99" in found["state"][0]["message"]


def test_a_missing_privilege_is_named_and_nothing_else_is_examined(doctor: Doctor) -> None:
    code, found = doctor(before=("setpriv", "--bounding-set=-net_admin", "--"))
    assert code == 1
    assert list(found) == ["privileges"]
    assert found["privileges"][0]["message"].startswith("CAP_NET_ADMIN missing")


@ONLY_NFTABLES
def test_a_running_agent_is_asked_and_a_dead_or_foreign_one_is_an_error(
    node: LabNode, tmp_path: Path
) -> None:
    # A busy agent does not answer it within five seconds.
    eventually(lambda: examine(node.namespace, node.document) == (0, {}))
    other = tmp_path / "node.yaml"
    keys = yaml.safe_load(node.document.read_text())
    other.write_text(yaml.safe_dump(keys | {"run_dir": str(tmp_path / "run")}))
    code, found = examine(node.namespace, other)
    runs = f"another agent runs in this network namespace (process {node.agent_pid()}"
    assert (code, runs in found["agent"][0]["message"]) == (1, True)
    node.kill_agent()
    code, found = examine(node.namespace, node.document)
    assert code == 1
    assert "no agent answers" in found["agent"][0]["message"]
    assert found["agent"][0]["remedy"].startswith("start the agent")
    inside(node.namespace, "iptables-nft", "-P", "FORWARD", "DROP")
    node.start_until_ready()
    log = node.directory / "agent.log"
    said = 'machine check=firewall found="the policy of ip filter FORWARD drops what'
    eventually(lambda: said in log.read_text())
    inside(node.namespace, "iptables-nft", "-P", "FORWARD", "ACCEPT")
