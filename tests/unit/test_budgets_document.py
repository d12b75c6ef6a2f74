"""What a document may say about budgets, and which it refuses: with line, key and remedy."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from netmgr.budgets.held import HeldGrants, decode
from netmgr.budgets.messages import MOST, Budget, BudgetAnswer, Grant, encode
from netmgr.documents import loader
from netmgr.documents.budgets import MOST_BYTES, BudgetsDocument, too_low
from netmgr.errors import ConfigError
from netmgr.model import MOST_RATE, Traffic

EVERYONE = '{name: everyone, namespaces: ["*"], internet-in: 100G}'
RESEARCH = (
    '{name: research, within: everyone, namespaces: ["research-*"], internet-in: 20G, '
    "per-day: 10T, when-spent: drop}"
)


def parsed(*budgets: str, head: str = "") -> BudgetsDocument:
    lines = ["apiVersion: netmgr.io/v1alpha1", "kind: Budgets", *([head] if head else [])]
    lines += ["budgets:", *(f"  - {budget}" for budget in budgets)]
    return loader.parse("\n".join(lines) + "\n", "budgets.yaml", BudgetsDocument)


def test_budgets_are_given_parents_first() -> None:
    document = parsed(RESEARCH, EVERYONE)
    assert document.enforce
    assert document.budgets_in_order() == (
        Budget("everyone", "", ("*",), Traffic.INTERNET_IN, 100 * 10**9),
        Budget(
            "research", "everyone", ("research-*",), Traffic.INTERNET_IN, 20 * 10**9, 10 * 10**12, 0
        ),
    )


def test_a_document_says_at_which_rate_and_whether_at_all_it_holds_back() -> None:
    slow = parsed(
        "{name: a, namespaces: [a], internet-out: 1G, per-day: 1T, when-spent: 100M}",
        head="enforce: false",
    )
    assert not slow.enforce
    assert slow.budgets_in_order()[0].slow == 100_000_000


def test_the_version_is_another_after_each_change_and_the_same_for_another_order() -> None:
    first = parsed(EVERYONE, RESEARCH).version
    assert parsed(RESEARCH, EVERYONE).version == first
    changes = [
        parsed(EVERYONE, RESEARCH, head="enforce: false"),
        parsed(EVERYONE, RESEARCH.replace("20G", "21G")),
        parsed(EVERYONE, RESEARCH.replace("drop", "1G")),
        parsed(EVERYONE),
    ]
    assert len({first, *(document.version for document in changes)}) == 5


NESTED = [
    "{name: n0, namespaces: [a], internet-in: 1G}",
    *(
        f"{{name: n{number}, within: n{number - 1}, namespaces: [a], internet-in: 1G}}"
        for number in range(1, 7)
    ),
]
OTHER = "{name: other, namespaces: [other], internet-in: 1G}"
REFUSED = [
    (
        [EVERYONE, RESEARCH.replace("within: everyone, ", "")],
        (
            "5: budgets[1].namespaces: a namespace can be in research and in everyone (line 4); "
            "say that one is within the other, or name other namespaces"
        ),
    ),
    (
        [OTHER, '{name: o, namespaces: [x, "oth*"], internet-in: 1G}'],
        "5: budgets[1].namespaces: a namespace can be in o and in other (line 4)",
    ),
    (
        [RESEARCH, OTHER],
        "4: budgets[0].within: there is no budget everyone; there are other",
    ),
    ([RESEARCH], "4: budgets[0].within: there is no budget everyone; there are no others"),
    (
        [
            "{name: a, within: b, namespaces: [a], internet-in: 1G}",
            "{name: b, within: a, namespaces: [a], internet-in: 1G}",
        ],
        "4: budgets[0].within: a within b within a is a circle; remove one within",
    ),
    (
        ["{name: a, within: a, namespaces: [a], internet-in: 1G}"],
        "4: budgets[0].within: a within a is a circle",
    ),
    (
        NESTED,
        "10: budgets[6].within: n6 is within 6 budgets; nest at most 6",
    ),
    (
        [EVERYONE, RESEARCH.replace("internet-in", "internet-out")],
        (
            "5: budgets[1].within: research is for internet-out, and everyone for internet-in "
            "(line 4); make a budget for each direction"
        ),
    ),
    (
        [EVERYONE, RESEARCH.replace("20G", "101G")],
        "5: budgets[1].internet-in: 101G is more than everyone has, 100G (line 4); lower it",
    ),
    (
        [OTHER, OTHER.replace("other,", "part, within: other,", 1).replace("[other]", '["oth*"]')],
        "5: budgets[1].namespaces: oth* is not within the namespaces of other (line 4); name fewer",
    ),
    (
        # Of a parent that comes later.
        [
            "{name: c, within: b, namespaces: [a, c], internet-in: 1G}",
            "{name: b, within: a, namespaces: [a, c], internet-in: 1G}",
            "{name: a, namespaces: [a], internet-in: 1G}",
        ],
        "5: budgets[1].namespaces: c is not within the namespaces of a (line 6)",
    ),
    ([OTHER, OTHER], "5: budgets[1].name: two budgets are named other (line 4); name each once"),
    ([OTHER.replace("1G", "0")], "4: budgets[0].internet-in: 0 bits a second: give at least 64k"),
    ([OTHER.replace("1G", "1k")], "1000 bits a second: give at least 64k, and at most 1T"),
    ([OTHER.replace("1G", "1Gb")], "budgets[0].internet-in: '1Gb' is no rate; write bits"),
    ([OTHER.replace("internet-in", "internet-inn")], "unknown key; did you mean internet-in?"),
    ([OTHER.replace("internet-in", "internet_in")], "unknown key; did you mean internet-in?"),
    # A `*` is allowed, at the end.
    ([OTHER.replace("[other]", '["Oth*"]')], "; it cannot have 'O'"),
    ([OTHER.replace("1G", "1G, internet-out: 1G")], "4: budgets[0]: give either internet-in or"),
    (["{name: a, namespaces: [a]}"], "4: budgets[0]: give either internet-in or internet-out"),
    ([OTHER.replace("1G", "1G, when-spent: drop")], "4: budgets[0]: when-spent has no quota; give"),
    (
        [OTHER.replace("1G", "1G, per-day: 1T, when-spent: 2G")],
        "4: budgets[0]: when-spent is more than internet-in; give less than 1G",
    ),
    ([OTHER.replace("1G", "1G, per-day: 0")], "budgets[0].per-day: 0 is too little; give at least"),
    ([OTHER.replace("1G", "1G, per-day: 1TB")], "budgets[0].per-day: '1TB' is no quantity; write"),
    ([OTHER.replace("[other]", "[]")], "budgets[0].namespaces: has too few members"),
    ([OTHER.replace("[other]", '["a[bc]"]')], "budgets[0].namespaces[0]: 'a[bc]' is not of the"),
    ([OTHER.replace("[other]", '["*-b"]')], "budgets[0].namespaces[0]: '*-b' is not of the form"),
    ([OTHER.replace("name: other", "name: The/rest")], "budgets[0].name: 'The/rest' is not of"),
]


@pytest.mark.parametrize(("budgets", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_kept_is_refused_with_line_key_and_remedy(
    budgets: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(*budgets)
    (said,) = str(raised.value).splitlines()
    assert said.startswith("budgets.yaml:")
    assert message in said


def long_budgets(length: int) -> list[str]:
    """As many budgets and patterns as there may be, with patterns of so many characters."""
    return [
        f"{{name: b{number:062}, namespaces: ["
        + ", ".join(f"n{number:02}-{one:0{length - 4}}" for one in range(MOST))
        + "], internet-in: 1T}"
        for number in range(MOST)
    ]


def test_budgets_that_no_answer_has_room_for_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(*long_budgets(62))
    (said,) = str(raised.value).splitlines()
    assert said.startswith("budgets.yaml:4: budgets[0].namespaces: the budgets have 2")
    assert "name fewer namespaces, or what they begin with and a *" in said


def test_a_node_takes_the_longest_answer_that_a_document_makes() -> None:
    names = [f"b{number:062}" for number in range(MOST)]
    patterns = tuple(f"n{number:048}" for number in range(MOST))
    budgets = tuple(
        Budget(name, "", patterns, Traffic.INTERNET_OUT, MOST_RATE, 10**18, MOST_RATE)
        for name in names
    )
    assert 0.98 * MOST_BYTES < len(encode(budgets)) <= MOST_BYTES
    most = Grant(MOST_RATE, MOST_RATE, MOST_RATE, 10**18, 10**6, 10**18)
    answer = BudgetAnswer(
        *(10**18, 10**18, "v" * 16),
        enforce=False,
        budgets=budgets,
        grants=dict.fromkeys(names, most),
    )
    kept = HeldGrants("b" * 253, 1e9, answer)
    assert decode(encode(kept)) == kept


def test_budgets_of_two_directions_may_hold_the_same_namespaces() -> None:
    outward = EVERYONE.replace("everyone", "all-out").replace("internet-in", "internet-out")
    assert len(parsed(EVERYONE, outward, RESEARCH).budgets) == 3


def test_six_budgets_may_be_in_one_another() -> None:
    assert len(parsed(*NESTED[:6]).budgets) == 6


def test_a_budget_of_which_each_node_has_too_little_is_warned_of() -> None:
    document = parsed("{name: a, namespaces: [a], internet-in: 1G}")
    assert [*too_low(document, 2000)] == []
    (warning,) = too_low(document, 2001)
    assert warning.at.key == ("budgets", 0, "internet-in")
    assert str(warning) == (
        "1G is 499750 bits a second for each of 2001 nodes, which pass more than that by single "
        "packets; give at least 1000500k"
    )


def test_what_is_beyond_a_quota_is_warned_of_where_single_packets_are_more() -> None:
    document = parsed("{name: a, namespaces: [a], internet-in: 10G, per-day: 1T, when-spent: 9M}")
    assert [*too_low(document, 1000)] == []
    (warning,) = too_low(document, 1001)
    assert warning.at.key == ("budgets", 0, "when-spent")
    dropping = "{name: a, namespaces: [a], internet-in: 10G, per-day: 1T, when-spent: drop}"
    assert [*too_low(parsed(dropping), 1001)] == []


def test_what_is_written_is_read_again() -> None:
    document = parsed(EVERYONE, RESEARCH)
    text = yaml.safe_dump(document.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert "when-spent: drop" in text
    # `when-spent` alone would say that there is a quota.
    kept = yaml.safe_load(text)
    del kept["budgets"][0]["when-spent"]
    assert loader.parse(yaml.safe_dump(kept), "x", BudgetsDocument) == document


patterns = st.lists(
    st.from_regex(r"[ab]{0,3}[ab*]", fullmatch=True), min_size=1, max_size=3, unique=True
)
# A name that two patterns have in common is no longer than the longer one, and a letter.
NAMES = ["".join(letters) for length in range(1, 6) for letters in product("ab", repeat=length)]


def holding(namespaces: list[str]) -> set[str]:
    return {name for name in NAMES if any(fnmatchcase(name, pattern) for pattern in namespaces)}


@given(patterns, patterns)
def test_budgets_have_no_namespace_in_common_or_all_of_one(
    some: list[str], others: list[str]
) -> None:
    first = f"{{name: first, namespaces: {some}, internet-in: 100M}}"
    second = f"{{name: second, namespaces: {others}, internet-in: 100M}}"
    assert is_refused(first, second) is bool(holding(some) & holding(others))
    # Two patterns that hold all of one together are taken for fewer: `a` and `a*` are not `a?`.
    if not is_refused(first, second.replace("namespaces", "within: first, namespaces")):
        assert holding(others) <= holding(some)
    for pattern in some:
        part = f"{{name: x, within: first, namespaces: ['{pattern}'], internet-in: 1M}}"
        assert not is_refused(first, part)


def is_refused(*budgets: str) -> bool:
    try:
        parsed(*budgets)
    except ConfigError:
        return True
    return False
