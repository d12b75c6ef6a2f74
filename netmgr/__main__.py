"""The `netmgr` command, and `python -m netmgr`. An agent is started without the others' parser.

typer and pydantic are 19 MB that a daemon would keep, and half of the time until it is ready.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from netmgr import documents
from netmgr.cli.asking import CONFIG_VARIABLE, NODE_DOCUMENT
from netmgr.cli.ending import told_errors
from netmgr.logs import LogFormat


def main() -> None:
    """Run the command line."""
    command, *arguments = sys.argv[1:] or [""]
    options = _of_agent(arguments) if command == "agent" else None
    if options is None:
        from netmgr.cli.main import main as command_line

        command_line()
        return
    # Before any document is imported.
    documents.HAS_PYDANTIC = False
    from netmgr.agent.core.checking import DocumentCheck

    with told_errors():
        check = DocumentCheck(options.config)
        # Beside the check, this process loads the agent.
        from netmgr.agent.main import run

        run(options.config, check, options.log_format)


def _of_agent(arguments: Sequence[str]) -> Namespace | None:
    """The options of `netmgr agent` (`cli/agent.py`), or None for what typer has to answer."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    config = Path(os.environ.get(CONFIG_VARIABLE) or NODE_DOCUMENT)
    parser.add_argument("--config", "-c", type=Path, default=config)
    parser.add_argument("--log-format", type=LogFormat, default=LogFormat.TEXT)
    try:
        options, others = parser.parse_known_args(arguments)
    except ArgumentError:
        return None
    return None if others else options


if __name__ == "__main__":
    main()
