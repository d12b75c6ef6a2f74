"""What `cni: off` means for the document, the rules, and what people are shown."""

from __future__ import annotations

import pytest

from netmgr.cli import node_tables
from netmgr.documents.explain import explain
from netmgr.documents.loader import parse
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError
from netmgr.prefixes import Address
from netmgr.rules.model import Drop, Hook, Masquerade
from netmgr.rules.policy import Policy, desired
from tests.fakes.agent_socket import snapshot

HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\nnode: {name: node-a}\n"


def document(text: str) -> NodeDocument:
    return parse(HEAD + text, "node.yaml", NodeDocument)


@pytest.mark.parametrize("off", ["off", "false", "'off'"])
def test_an_observer_needs_no_ranges(off: str):
    assert document(f"cni: {off}\n").cni is False
    assert document(f"ranges: []\ncni: {off}\n").ranges == ()


@pytest.mark.parametrize("text", ["", "cni: on\n", "ranges: []\n"])
def test_whoever_wires_pods_needs_ranges(text: str):
    with pytest.raises(ConfigError, match="ranges: is required and missing"):
        document(text)


def test_a_cni_that_is_neither_on_nor_off_is_refused():
    with pytest.raises(ConfigError, match=r"node\.yaml:4: cni: "):
        document("cni: bridge\n")


def test_an_observers_rules_only_count():
    given = document("cni: off\n")
    told = (
        given.internal_prefixes,
        (),
        given.masquerade,
        given.accounting.node_rules,
        "x",
        given.accounting.exact_prefix,
    )
    observing, wiring = desired(Policy(*told, counts_only=True), ()), desired(Policy(*told), ())
    dropped = {rule for rule in wiring.rules() if isinstance(rule.action, Drop | Masquerade)}
    dropped |= set(wiring.chains[Hook.PREROUTING])
    assert dropped
    assert set(observing.rules()) == set(wiring.rules()) - dropped


def test_an_observer_never_says_that_it_masquerades():
    answer = explain(document("cni: off\n"), Address.parse("203.0.113.9"), [])
    assert (answer["counted"], answer["masqueraded"]) == (True, False)


def test_people_see_result_files_where_there_is_no_pool():
    observed = {**snapshot(2, 1), "pool": [], "result_files": [{"state": "stale", "count": 3}]}
    shown = "\n".join(map(str, node_tables.status(observed)))
    assert "3 stale" in shown
    assert "cooldown" not in shown
