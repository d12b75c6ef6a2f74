"""Writes what is made from code or from other files: `python -m tests.docs.reference`.

These are pages of docs/reference, `configs/schemas`, and the rules of Prometheus as its operator
reads them.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import typer
import yaml
from typer.core import TyperGroup

from exporter.catalog import CATALOG, Metric
from exporter.controller_catalog import CONTROLLER
from netmgr.documents import quantity
from netmgr.errors import Exit
from tests import commands
from tests.docs import schemas

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "configs" / "prometheus"

# typer's class of these has no public name.
Command: TypeAlias = Any
Schema: TypeAlias = dict[str, Any]

NUMBER, QUANTITY = quantity.SCHEMA["anyOf"]


@cache
def pages() -> dict[str, str]:
    """Path and content of each."""
    return {
        "configs/prometheus/prometheus-rule.yaml": _rule_object(),
        "docs/reference/budgets-yaml.md": _document("budgets.yaml", BUDGETS_YAML),
        "docs/reference/alerts.md": ALERTS + "".join(_alerts()),
        "docs/reference/commands.md": _commands(),
        "docs/reference/exit-codes.md": _exit_codes(),
        "docs/reference/metrics.md": _metrics(),
        "docs/reference/node-yaml.md": _document("node.yaml", NODE_YAML),
        "docs/reference/plan-yaml.md": _document("plan.yaml", PLAN_YAML),
    }


RULE_OBJECT = """\
# recording.yml and alerts.yml for Prometheus' operator: `python -m tests.docs.reference` makes it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: netmgr, namespace: netmgr}
spec:
  groups:
"""


def _rule_object() -> str:
    texts = ((PROMETHEUS / name).read_text("utf-8") for name in ("recording.yml", "alerts.yml"))
    groups = "".join(text.partition("\ngroups:\n")[2] for text in texts)
    return RULE_OBJECT + textwrap.indent(groups, "  ")


@cache
def _essentials() -> set[tuple[str, str]]:
    """The commands, keys, metrics and alerts that docs/start.md names, each below its heading."""
    _, *sections = re.split(r"(?m)^## ", (ROOT / "docs" / "start.md").read_text("utf-8"))
    return {
        (section.partition("\n")[0], name.partition(" --")[0])
        for section in sections
        for name in re.findall(r"(?m)^- `([^`]+)`", section)
    }


def _mark(heading: str, *names: str) -> str:
    """What is before the text of what has these names."""
    return "★ " if _essentials() & {(heading, name) for name in names} else ""


ALERTS = """\
# Alerts

Those of [alerts.yml](../../configs/prometheus/alerts.yml), with their descriptions. Thresholds are
for nodes of 10 Gbit/s and more; change them in your copy. Commands with `netmgr node` run on the
node that the label `instance` names. In Kubernetes:

```sh
kubectl -n netmgr exec POD -c agent -- netmgr node status
```

[★](../start.md): these come first.
"""
ALERT = """
### {alert}

{mark}*{labels[severity]}, {after}*: {summary}.

{annotations[description]}
"""


def _alerts() -> Iterator[str]:
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"]:
        yield f"\n## {group['name'].removeprefix('netmgr-').capitalize()}\n"
        for rule in group["rules"]:
            after = "at once" if rule["for"] == "0s" else f"after {rule['for']}"
            summary = _without_templates(rule["annotations"]["summary"])
            page = ALERT.format_map(
                rule | {"after": after, "summary": summary, "mark": _mark("Alerts", rule["alert"])}
            )
            # Alerts name pages by their path in the repository.
            yield re.sub(r"\bdocs/(reference/)?([\w/-]+\.md)(#[\w-]+)?", _link, page)


def _without_templates(summary: str) -> str:
    """A summary with the names of labels in place of their values."""
    summary = re.sub(r"{{ with [^}]+ }}(.*?){{ \. }}{{ end }}", r"\1CLUSTER", summary)
    summary = re.sub(r"{{ \$labels\.(\w+) }}", lambda label: label[1].upper(), summary)
    return re.sub(r"{{ \$value.*?}}", "…", summary)


def _link(path: re.Match[str]) -> str:
    within, name, anchor = path.groups("")
    return f"[docs/{within}{name}]({'' if within else '../'}{name}{anchor})"


METRICS = """\
# Metrics

In brackets are the type, the labels, and how many series a node with 250 pods in 20 namespaces
exposes, with addresses of both families. Where that depends on what happens, it is the upper bound.
Two names in a line count bytes and packets of one thing. ★: begin [with these](../start.md).

## Of a node

{node}

## Of the controller

{controller}
"""


def _metrics() -> str:
    return METRICS.format(node=_lines(CATALOG), controller=_lines(CONTROLLER))


def _lines(metrics: Iterable[Metric]) -> str:
    """A line for each metric, or for two that count the bytes and the packets of one thing."""
    same: dict[tuple[str, ...], list[Metric]] = {}
    for metric in metrics:
        thing = metric.name.replace("_packets", "_bytes")
        same.setdefault((thing, *metric.labels), []).append(metric)
    return "\n".join(
        f"- {_mark('Metrics', *(metric.name for metric in pair))}"
        f"{', '.join(f'`{metric.name}`' for metric in pair)} "
        f"({pair[0].kind}{_labels(pair[0])}, {pair[0].series}): "
        f"{_line(max((metric.help for metric in pair), key=len))}"
        for pair in same.values()
    )


def _labels(metric: Metric) -> str:
    return f" by {', '.join(f'`{label}`' for label in metric.labels)}" if metric.labels else ""


COMMANDS = """\
# Commands

Begin [with those](../start.md) that have a ★. All of them take `--help`. [Exit
codes](exit-codes.md) says what they end with, [JSON for programs](json.md) what `-o json` answers.
*env var* is the variable that an option takes its value from where it is not given.

Options that several commands share:

{shared}

{commands}"""
SHARED_BY = 3
"""An option of as many commands is described once."""


def _commands() -> str:
    contexts = list(_contexts(commands.whole(), None))
    uses = Counter(
        text
        for here in contexts
        for name, text in _parameters(here).items()
        if name.startswith("-")  # an argument is of its command alone
    )
    shared = {text for text, number in uses.items() if number >= SHARED_BY}
    return COMMANDS.format(
        shared="\n".join(text for text in uses if text in shared),
        commands="\n".join(_section(here, shared) for here in contexts),
    )


def _contexts(command: Command, above: typer.Context | None) -> Iterator[typer.Context]:
    """The context of a command, then those of the commands below it."""
    name = command.name if above else "netmgr"
    with typer.Context(command, info_name=name, parent=above, **command.context_settings) as here:
        yield here
        for inner in command.commands.values() if isinstance(command, TyperGroup) else ():
            yield from _contexts(inner, here)


def _section(here: typer.Context, shared: AbstractSet[str]) -> str:
    level = "###" if here.parent and here.parent.parent else "##"
    # Paragraphs end their lines where the source does.
    text = _escaped(inspect.cleandoc(here.command.help or ""))
    parts = [f"{level} {here.command_path}", _mark("Commands", here.command_path) + text]
    parameters = _parameters(here)
    own = [text for text in parameters.values() if text not in shared]
    others = [f"`{name}`" for name, text in parameters.items() if text in shared]
    parts += ["\n".join(own)] if own else []
    parts += [f"Also {', '.join(others)}."] if others else []
    return "\n\n".join(parts) + "\n"


def _parameters(here: typer.Context) -> dict[str, str]:
    """A line for each argument and option of a command, by its longest name."""
    lines = {}
    for parameter in here.command.params:
        record = parameter.get_help_record(here)
        if record and "--help" not in parameter.opts:
            names, help_ = record
            text = _line(_escaped(help_))
            lines[max(parameter.opts, key=len)] = f"- `{names}`: {text}"
    return lines


EXIT_CODES = """\
# Exit codes

Every command of `netmgr` ends with one of these codes. Each has one meaning, so that a pipeline
takes neither an error nor a mistyped command for changes.

| code | meaning |
|---|---|
{codes}
| 128 + n | signal n ended the command: 130 after Ctrl-C, 143 after SIGTERM |

These commands examine or change something, and say what came of it:

| command | exit |
|---|---|
{commands}

The CNI plugin ends with 0 or 1; its error codes are in the answer that it prints.

Programs that look for more than success or failure should treat a code that is not in this table
as 1.
"""


def _exit_codes() -> str:
    contexts = _contexts(commands.whole(), None)
    ends = ((here.command_path, _EXIT.search(_line(here.command.help or ""))) for here in contexts)
    return EXIT_CODES.format(
        codes="\n".join(f"| {code.value} | {code.meaning} |" for code in Exit),
        commands="\n".join(f"| `{path}` | {end[1]} |" for path, end in ends if end),
    )


_EXIT = re.compile(r"\bExit (\d if [^.]+)\.(?= |$)")
"""What the help of a command says of its own codes."""


NODE_YAML = """\
# node.yaml

What a machine's agent is to do. `netmgr agent --check --config FILE` checks a file, and
[configs/node.yaml](../../configs/node.yaml) is one with every key. The JSON Schema of this table
has [an editor complete keys](json.md#documents-in-an-editor). ★: begin [with these](../start.md).

"""
PLAN_YAML = """\
# plan.yaml

What a hub and its clusters are to be. `netmgr plan init` writes a first one, `netmgr plan check`
checks it, and [configs/plan/plan.yaml](../../configs/plan/plan.yaml) is one with every key.
The JSON Schema of this table has [an editor complete keys](json.md#documents-in-an-editor).

"""
BUDGETS_YAML = """\
# budgets.yaml

How much internet traffic pods may have in a whole cluster;
[configs/budgets.yaml](../../configs/budgets.yaml) is one with every key.
The JSON Schema of this table has [an editor complete keys](json.md#documents-in-an-editor).

"""
KEYS = """\
`[]` is each member of a list, NAME a name of your choice. A *quantity* is a number that may end in
k, M, G, T, Ki, Mi, Gi or Ti. In brackets are a key's values, and after = its default.

"""


def _document(name: str, head: str) -> str:
    schema = schemas.generate(name)
    return head + KEYS + "\n".join(_keys(schema, schema, "")) + "\n"


def _keys(whole: Schema, part: Schema, path: str) -> Iterator[str]:
    """A row for each key of a document, those of its parts behind it; required ones first."""
    required = part.get("required", ())
    for key in sorted(part["properties"], key=lambda key: key not in required):
        inner = part["properties"][key]
        said = inner.get("description") or _resolved(whole, inner)["description"]
        default = ", **required**" if key in required else _default(inner)
        mark = _mark(f"Keys of {whole['$id'].split(':')[2]}", path + key)
        yield f"- {mark}`{path}{key}` ({_values(whole, inner)}{default}): {_line(said)}"
        yield from _below(whole, inner, f"{path}{key}")


def _below(whole: Schema, part: Schema, path: str) -> Iterator[str]:
    """The keys of what a key holds: a mapping, named mappings or a list of them."""
    part = _resolved(whole, part)
    if "properties" in part:
        yield from _keys(whole, part, f"{path}.")
    for one in part.get("patternProperties", {}).values():
        yield from _below(whole, one, f"{path}.NAME")
    for one in part.get("anyOf", ()):
        yield from _below(whole, one, path)
    if "items" in part:
        yield from _below(whole, part["items"], f"{path}[]")


def _resolved(whole: Schema, part: Schema) -> Schema:
    """What a part refers to, or itself."""
    reference = part.get("$ref", "").removeprefix("#/$defs/")
    return whole["$defs"][reference] if reference else part


def _values(whole: Schema, part: Schema) -> str:
    """What a key may be, in words."""
    match _resolved(whole, part):
        case {"anyOf": choices}:
            left_out = ({"type": "null"}, *([NUMBER] if QUANTITY in choices else ()))
            each = (_values(whole, one) for one in choices if one not in left_out)
            words = " or ".join(dict.fromkeys(each))
        case {"items": items}:
            words = f"list of: {_values(whole, items)}"
        case {"patternProperties": named}:
            words = f"NAME: {_values(whole, next(iter(named.values())))}"
        case {"additionalProperties": dict(named)}:
            words = f"NAME: {_values(whole, named)}"
        case plain:
            words = _value(plain)
    return words


def _value(part: Schema) -> str:
    match part:
        case {"enum": [True, False, *_]}:
            words = "`true` or `false`"
        case {"enum": values}:
            words = ", ".join(map(_code, values))
        case {"const": value}:
            words = _code(value)
        case {"prefixItems": _}:
            words = "`ADDRESS:PORT`"
        case {"type": "object"}:
            words = "mapping"
        case {"examples": [example]}:
            words = "prefix" if "/" in example else "address"
        case _ if part == QUANTITY:
            words = "quantity"
        case _:
            words = part.get("format", part["type"]) + _bounds(part)
    return words


def _bounds(part: Schema) -> str:
    words = {
        "minimum": "from {}",
        "exclusiveMinimum": "above {}",
        "maximum": "to {}",
        "exclusiveMaximum": "below {}",
        "maxLength": "at most {} characters",
        "pattern": "`{}`",
    }
    found = [text.format(part[key]) for key, text in words.items() if key in part]
    return f", {' '.join(found)}" if found else ""


def _default(part: Schema) -> str:
    match part.get("default"):
        case None | "" | [] | dict():  # a mapping's keys have their own
            return ""
        case default:
            return f" = {_code(default)}"


def _code(value: object) -> str:
    """A value as YAML has it."""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _escaped(text: str) -> str:
    """Text of the command line, in which nothing but `code` is Markdown."""
    plain, *others = re.split(r"(`[^`]*`)", text)
    escaped = [plain, *others]
    escaped[::2] = [each.replace("<", "&lt;").replace("*", "\\*") for each in escaped[::2]]
    return "".join(escaped)


def _line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    """Write all of them."""
    for folder, files in ((ROOT, pages()), (schemas.FOLDER, schemas.files())):
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
