"""Support archives: what cannot be collected, what is too long, and what names become."""

from __future__ import annotations

import re

import pytest

from netmgr import archive
from netmgr.errors import SetupError


def test_a_part_that_fails_says_why_in_its_place_and_a_long_one_keeps_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> str:
        raise SetupError("nothing there")

    monkeypatch.setattr(archive, "MOST_BYTES", 10)
    parts = {"bad": failing, "long": lambda: "0123456789end", "short": lambda: "0123456789"}
    assert archive.collect(parts) == {
        "bad": "cannot be collected: nothing there\n",
        "long": "the first 3 characters are left out\n3456789end",
        "short": "0123456789",
    }


def test_a_name_has_one_pseudonym_and_only_whole_words_are_names() -> None:
    names = ["web", "web-0", "team-a", "kube-system"]
    text = "team-a/web-0 web web.example cobweb webs web-0.x kube-system"
    found = archive.redacted({"a": text, "b": "web-0"}, names)
    namespace, pod = found["a"].split()[0].split("/")
    assert archive.redacted({"a": text}, names)["a"] != found["a"]
    assert found["b"] == pod
    web = found["a"].split()[1]
    assert len({namespace, pod, web}) == 3
    assert found["a"].split()[2:] == ["web.example", "cobweb", "webs", "web-0.x", "kube-system"]


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("released container=1 pod=team/gone why=x", "released container=1 pod=N/N why=x"),
        ('quota namespace="team" pod="a b/gone"', 'quota namespace="N" pod="N/N"'),
        ('{"namespace": "team", "pod": "gone", "n": 7}', '{"namespace": "N", "pod": "N", "n": 7}'),
        ('{"namespace": "", "pod": "-"}', '{"namespace": "", "pod": "-"}'),
        ("pods=7 podium=x", "pods=7 podium=x"),
    ],
)
def test_what_lines_and_documents_say_of_pods_that_are_gone_is_hidden(
    line: str, hidden: str
) -> None:
    shown = archive.redacted({"log": line}, [])["log"]
    assert re.sub("name-[0-9a-f]{10}", "N", shown) == hidden
