"""What people get wrong, as they get it wrong: the exit code, and a message that names file and
key and says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.cli import asking
from netmgr.documents import validation
from netmgr.documents.budgets import BudgetsDocument
from netmgr.documents.node import NodeDocument
from netmgr.errors import Exit
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from tests.builders import SMALL_PLAN

HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\nnode: {name: node-a, addresses: [10.1.0.200]}\n"
RANGES = "ranges: [10.1.0.0/28]\n"
NO_WAY_BACK = "is internet, which has no way back to pods' addresses"

CONTRADICTIONS = [
    ("ranges: [10.1.0.0/28, 10.1.0.4/30]", "4: ranges[1]: 10.1.0.4/30 overlaps 10.1.0.0/28"),
    (
        "ranges:\n- 10.1.0.4/30\n- 10.1.0.0/28",
        "6: ranges[1]: 10.1.0.0/28 overlaps 10.1.0.4/30 (line 5);",
    ),
    ("ranges: [10.1.0.192/27]", "4: ranges[0]: 10.1.0.192/27 holds the node's own address"),
    ("ranges: [10.1.0.200]", "4: ranges[0]: 10.1.0.200/32 holds the node's own address"),
    ("ranges: []", "4: ranges: is required and missing"),
    ("cni: on", "1: ranges: is required and missing"),
    (
        "ranges: [10.1.0.0/28, 169.254.7.7]",
        "4: ranges[1]: 169.254.7.7/32 lies in the special-use prefix 169.254.0.0/16",
    ),
    (
        "ranges: [10.1.0.1/28]",
        "4: ranges[0]: '10.1.0.1/28' has host bits set; did you mean 10.1.0.0/28?",
    ),
    ("ranges:\n- 10.1.0.0/28\n- pods", "6: ranges[1]: 'pods' is not an IP address"),
    ("ranges: [10.1.0.0/28", "5: is not YAML"),
    (RANGES + "range: x", "5: range: unknown key"),
    (RANGES + "pool:\n  cooldown: 3", "6: pool.cooldown: unknown key"),
    (RANGES + "protect: [0.0.0.0/0]", "5: protect[0]: 0.0.0.0/0 is everything of IPv4"),
    (
        RANGES + "protect: [10.0.0.0/8]",
        "5: protect[0]: 10.0.0.0/8 overlaps ranges[0], 10.1.0.0/28, so that pods would not",
    ),
    (
        RANGES + "accounting: {classes: [{name: protected, prefixes: [10.9.0.0/16]}]}",
        "5: accounting.classes[0]: class protected is there without being named",
    ),
    (RANGES + "internal: [0.0.0.0/0]", "5: internal: makes everything of IPv4 internal,"),
    (
        RANGES + "internal: [0.0.0.0/1, 128.0.0.0/1]",
        "5: internal: makes everything of IPv4 internal with the special-use prefixes",
    ),
    (RANGES + "internal: ['::/1', '8000::/1']", "5: internal: makes everything of IPv6"),
    (
        RANGES + "accounting:\n  node_rules: exact\n  exact_prefix: 'fd00::/8'",
        "7: accounting.exact_prefix: fd00::/8 is IPv6",
    ),
    (
        RANGES + "accounting:\n  node_rules: exact\n  exact_prefix: 0.0.0.0/0",
        "7: accounting.exact_prefix: 0.0.0.0/0 excepts everything",
    ),
    (
        RANGES + "native: [10.0.0.0/8, 203.0.113.0/24]",
        f"5: native[1]: 203.0.113.0/24 {NO_WAY_BACK}; add it to internal if it has one, or",
    ),
    (
        RANGES + "internal: [10.0.0.0/8]\nnative: ['fd00::/8', 10.0.0.0/8]",
        f"6: native[0]: fd00::/8 {NO_WAY_BACK} (line 5);",
    ),
    (
        RANGES + "cni: off\nnative: []",
        "6: native: masquerades nothing (line 5); remove it; only a hub-router and a node",
    ),
    (RANGES + "state_dir: state", "5: state_dir: 'state' is no absolute path"),
    (RANGES + 'state_dir: "/a\\0b"', "5: state_dir: "),
    (RANGES + "cni_results_dir: x", "5: cni_results_dir: 'x' is no absolute path"),
    (RANGES + f"run_dir: /{'r' * 95}", "5: run_dir: is too long by 1 bytes"),
    (RANGES + "ranges: [10.2.0.0/28]", "5: ranges: given twice (first in line 4)"),
    ("site: 2026-13-01", " has a value that cannot be one: month must be in 1..12"),
    ('mtu: !!int ""', " has a value that cannot be one: string index out of range"),
    (f"mtu: 1{':00' * 200}.5", " has a value that cannot be one: int too large"),
    ("site: \x07", " is not YAML: unacceptable character #x0007"),
]

VALUES = [
    ("mtu: 60", "mtu: 60 is too little; give at least 1280"),
    ("mtu: 1.5", "mtu: 1.5 is no whole number; write one, for example 1"),
    ("mtu: [1500]", "mtu: a list is no whole number"),
    ("mtu: 70000", "mtu: 70000 is too much; give at most 65535"),
    (
        "accounting: {history_hours: 31k}",
        "history_hours: '31k' is no whole number; write one, for example 31000",
    ),
    (
        "limits: [{pods: a/*, connections: {at-once: 31k, new-per-second: 9}}]",
        "connections.at-once: '31k' is no whole number; write one, for example 31000",
    ),
    ("pool: {cooldown_seconds: soon}", "pool.cooldown_seconds: 'soon' is no number; write one"),
    ("reconcile_seconds: 0", "reconcile_seconds: 0 is too little; give more than 0"),
    ("preflight: {most_loss: 1}", "preflight.most_loss: 1 is too much; give less than 1"),
    ("preflight: {peers: [" + "10.0.0.1, " * 257 + "]}", "has too many members; give at most 256"),
    ("cni: bridge", "cni: 'bridge' is neither true nor false; write one of them"),
    ("cni:", "cni: an empty value is neither true nor false"),
    ("backend: nftable", "'iptables-legacy' or 'iptables-nft'; did you mean nftables?"),
    ("accounting: {at: nowhere}", "accounting.at: 'nowhere' is not one of 'rules' or 'links'"),
    (
        "backend: iptables\naccounting: {at: links}",
        "iptables has no part in counting at links",
    ),
    (
        "accounting: {at: links, node_rules: exact}",
        "say node_rules: corrected, or at: rules",
    ),
    ("cni: off\naccounting: {at: links}", "links count for pods that netmgr wires"),
    ("accounting: {charge: wire}", "say at: links, or remove charge"),
    ("accounting: {link_layer_bytes: 18}", "say at: links, or remove link_layer_bytes"),
    ("backend: links", "'iptables-legacy' or 'iptables-nft'"),
    (
        "log_level: INFO",
        "log_level: 'INFO' is not one of 'debug', 'info', 'warning' or 'error'; did you mean info?",
    ),
    (
        "network: a b",
        "network: 'a b' is not of the form ^[a-zA-Z0-9][a-zA-Z0-9_.-]*$; it cannot have ' '",
    ),
    ("network: 5", "network: 5 is no text; write it in quotes"),
    ("protect_except: ['']", "protect_except[0]: '' has too few characters; give at least 1"),
    (f"protect_except: [{'n' * 64}]", "' has too many characters; give at most 63"),
    (
        "protect_except: kube-system",
        "protect_except: 'kube-system' is no list; write [one, another]",
    ),
    ("pool: 30", "pool: 30 is no mapping; write keys below it"),
    ("limits: [{pods: a/*, classes: 5}]", "limits[0].classes: 5 is no mapping; write keys below"),
    ("state_dir: 5", "state_dir: 5 is no path; begin it with /"),
    ("accounting: {classes: [{name: Hub}]}", "classes[0].name: 'Hub' is not of the form"),
    ("sites: [{name: hub, prefixes: []}]", "sites[0].prefixes: has too few members; give at least"),
    ("routes: [{to: 10.0.0.0/8}]", "routes[0].via: is required and missing"),
    *(
        (f"reader_group: {group}", f"reader_group: {shown} is neither the name of a group nor its")
        for group, shown in (
            ("-1", "-1"),
            ("4294967295", "4294967295"),
            ("true", "True"),
            ("''", "''"),
        )
    ),
    (
        "limits: [{pods: batch, internet-out: 1M}]",
        "'batch' is not NAMESPACE/NAME; for all pods of that namespace write batch/*",
    ),
    (
        "limits: [{namespaces: batch/web, internet-out: 1M}]",
        "limits[0].namespaces: 'batch/web' is not of the form ^[^/]+$; it cannot have '/'",
    ),
    *(
        (
            f"limits: [{{pods: a/*, internet-out: {rate}}}]",
            f"out: '{rate}' is no rate; write bits a second, without a unit: 100M are 100 Mbit/s",
        )
        for rate in ("1GB", "100Mbit", "fast")
    ),
    (
        "limits: [{pods: a/*, per-day: {internet-out: 5GB}}]",
        "'5GB' is no quantity; write a number without a unit: 500k, 100M, 1Gi",
    ),
    ("limits: [{pods: a/*, when-spent: stop}]", "800M are 100 MB/s; or write drop"),
    ("network: 2024-01-01", "network: 2024-01-01 is no text; write it in quotes"),
    ("limits:\n- pods: */*", "; write a value that begins with * or & in quotes"),
    ("network: @home", "; write a value that begins with this character in quotes"),
    ("mtu 1500", "; write `key: value`, with a space, in this line or before it"),
    ("limits:\n- pods: 'a/*", "; close the quote or bracket that is open"),
    ("limits: [{pods: a/*]", "; close the bracket that is open"),
    ("limits:\n- pods: a/*\n internet-out: 1M", "; indent the keys of one mapping alike"),
    ("state_dir: /a: b", "; indent it as its neighbours, or write a value with a colon in quotes"),
    ("\tmtu: 1500", "is not YAML: a tab does not indent; write spaces"),
    ("pool:\n\tcooldown_seconds: 3", "is not YAML: a tab does not indent; write spaces"),
]

COMMANDS = [
    (
        "agent --check -c plan.yaml",
        "plan.yaml:2: kind: is NetworkPlan, and this has to be a Node; name another file",
    ),
    (
        "plan check -f node.yaml",
        "node.yaml:2: kind: is Node, and this has to be a NetworkPlan; name another file",
    ),
    (
        "agent --check -c missing.yaml",
        "missing.yaml: No such file or directory; make it first, or name another",
    ),
    ("agent --check -c .", ".: Is a directory; name a file"),
    (
        "plan lock -f missing.yaml",
        "missing.yaml: is not there; run: netmgr plan init -f missing.yaml, or name another",
    ),
    (
        "plan show -f plan.yaml",
        "plan.lock.yaml: is not there yet; run: netmgr plan lock -f plan.yaml",
    ),
    ("plan grow gamma --nodes 9 -f plan.yaml", "plan.lock.yaml: is not there yet"),
    ("plan check -f capital.yaml", "8: clusters.Alpha: 'Alpha' is not of the form"),
    ("node top --interval 0", "'--interval': '0' is too little; give at least 0.5"),
    ("plan init --nodes lots", "'--nodes': 'lots' is no whole number; write one"),
    ("plan init --cloud aws", "'--cloud': 'aws' is not one of 'azure', 'none'"),
    ("node status -o xml", "'xml' is not one of 'table', 'json', 'yaml'"),
    *(
        (f"{command} --log-level loud", "'loud' is not one of 'debug', 'info', 'warning', 'error'")
        for command in ("budgets serve", "controller", "exporter")
    ),
    ("plan lokc", "No such command 'lokc'. Did you mean 'lock'"),
    (
        "kube bundle --service-account .",
        "is not set; outside a pod, give --kubeconfig FILE or set KUBECONFIG",
    ),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plan.yaml").write_text(SMALL_PLAN)
    (tmp_path / "capital.yaml").write_text(SMALL_PLAN.replace("alpha:", "Alpha:"))
    (tmp_path / "node.yaml").write_text(HEAD + RANGES)
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NETMGR_CONFIG", "NETMGR_SOCKET"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("body", "message"), [*CONTRADICTIONS, *((RANGES + body, said) for body, said in VALUES)]
)
def test_a_wrong_document_is_named_with_line_and_key(folder, netmgr, body, message):
    (folder / "node.yaml").write_text(HEAD + body + "\n")
    code, out, err = netmgr("agent", "--check", "-c", "node.yaml")
    assert (code, out) == (Exit.INVALID, "")
    first, *_ = err.splitlines()
    assert first.startswith("netmgr: node.yaml:")
    assert message in first
    assert not PYDANTIC.search(err)


@pytest.mark.parametrize(("line", "message"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_a_wrong_command_says_what_to_do(netmgr, line, message):
    code, _, err = netmgr(*line.split())
    assert (code, message in err) == (Exit.INVALID, True), err
    assert not PYDANTIC.search(err)


def test_nobody_is_to_try_again_where_no_agent_was_started(netmgr, monkeypatch, tmp_path):
    monkeypatch.setattr(asking, "DEFAULT_SOCKET", tmp_path / "ledger.sock")
    code, _, err = netmgr("node", "status")
    assert (code, "is 'netmgr agent' running" in err) == (Exit.FAILURE, True)
    assert "try again" not in err


PYDANTIC = re.compile("Input|String should|Value error|instance of|valid (dict|tuple|integer)")
"""What nobody wrote who knows the documents."""

FIRST_WORDS = {"str": "string", "lax-or-strict": "path"}
OWN = {"function-before", "function-after", "function-wrap", "function-plain", "is-instance"}
"""Types whose validators raise with words of our own, or that never see another type."""
STRUCTURE = {
    *("chain", "default", "definition-ref", "definitions", "json-or-python", "model-field"),
    *("model-fields", "named-tuple", "named-tuple-field", "no-info", "nullable", "union"),
    "with-info",
}


def types(schema: object) -> Iterator[str]:
    """Every type in a core schema of pydantic's."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema["type"]
        parts = [part for key, part in schema.items() if key not in ("metadata", "serialization")]
    else:
        parts = list(schema) if isinstance(schema, list | tuple) else []
    for part in parts:
        yield from types(part)


@pytest.mark.parametrize("model", [NodeDocument, BudgetsDocument, PlanDocument, LockDocument])
def test_every_type_of_a_document_has_words(model):
    found = set(types(model.__pydantic_core_schema__)) - OWN - STRUCTURE
    assert {FIRST_WORDS.get(each, each) for each in found} <= validation._MESSAGES.keys()
