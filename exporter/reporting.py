"""Reports to the server of budgets, and keeps its answer as a file that the agent follows.

The agent talks to no network, and this process, which does, decides nothing: an answer that is not
replaced expires by the agent's clock, whether this process lives or not.
"""

from __future__ import annotations

import json
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from exporter.settings import split_address
from netmgr import durable
from netmgr.backoff import Backoff
from netmgr.budgets import held, messages
from netmgr.budgets.held import HeldGrants
from netmgr.budgets.messages import PATH, SERVER_NAME, BudgetAnswer, BudgetReport, BudgetUse
from netmgr.budgets.terms import PERIOD
from netmgr.errors import ConfigError, NetmgrError, RequestError, StateError
from netmgr.file_version import RenewedFiles
from netmgr.logs import caused_by

TLS_FILES = ("ca.crt", "tls.crt", "tls.key")
EXCHANGE_SECONDS, LONGEST_ANSWER = 4.0, 4 << 20

# A TypeError or KeyError: another version of the agent or the server.
FAILURES = (NetmgrError, OSError, HTTPException, ValueError, TypeError, LookupError)

log = logging.getLogger(__name__)


class ServerConnection(HTTPSConnection):
    """To an address, where whoever answers has to have the server's name."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        # Without it, each connection would read all authorities that the machine trusts.
        super().__init__(*address, timeout=EXCHANGE_SECONDS, context=context)
        self._trusted = context

    def connect(self) -> None:
        HTTPConnection.connect(self)
        self.sock = self._trusted.wrap_socket(self.sock, server_hostname=SERVER_NAME)


class BudgetsClient:
    """Requests to the server of budgets, or to the leader that it names, over one connection.

    Args:
        credentials: a folder with ca.crt, and a token or tls.crt and tls.key.
    """

    def __init__(self, server: str, credentials: Path, option: str = "--budgets-server") -> None:
        """Read the files; ConfigError if one, or what `option` gave, cannot be used."""
        self._token = credentials / "token"
        # Kubernetes tells the address of a Service as tcp://ADDRESS:PORT.
        address = server.removeprefix("tcp://").removeprefix("https://")
        self._server = split_address(option, address)
        files = [path for path in map(credentials.joinpath, TLS_FILES) if path.exists()]
        self._tls = RenewedFiles(files, lambda: client_tls(credentials))
        self._connection: ServerConnection | None = None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The answer; RequestError if it is refused, or OSError, HTTPException, ValueError."""
        # Taken, and given back after a whole exchange alone: otherwise the next one connects anew,
        # and asks the server again who leads.
        connection, self._connection = self._connection or self._connect(self._server), None
        status, text = self._exchange(connection, method, path, body)
        if status == HTTPStatus.MISDIRECTED_REQUEST:
            connection.close()
            if not (leader := str(json.loads(text)["leader"])):
                raise RequestError("no server of budgets leads")
            connection = self._connect(split_address("the leader at", leader))
            status, text = self._exchange(connection, method, path, body)
        if status != HTTPStatus.OK:
            connection.close()
            raise RequestError(f"the server of budgets refused with {status}: {text[:200]!r}")
        self._connection = connection
        return text

    def _connect(self, address: tuple[str, int]) -> ServerConnection:
        return ServerConnection(address, self._tls.value())

    def _exchange(
        self, connection: ServerConnection, method: str, path: str, body: bytes
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if self._token.exists():
            # Each time: the kubelet renews it.
            headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read(LONGEST_ANSWER + 1)
        if not response.isclosed():
            connection.close()
            raise ValueError(f"the answer has more than {LONGEST_ANSWER} bytes")
        return response.status, text


class Reporter:
    """Reports to the server of budgets, again and again.

    Args:
        file: where answers are kept.
        ask: the agent's answer to the query `budgets`.
        boottime: seconds of CLOCK_BOOTTIME, by which the agent knows an answer's age.
    """

    def __init__(
        self,
        client: BudgetsClient,
        file: Path,
        ask: Callable[[], Mapping[str, Any]],
        boottime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._client, self._file = client, file
        self._ask, self._boottime = ask, boottime

    def run(self, ended: threading.Event) -> None:
        """Report until this is set."""
        backoff, failure = Backoff(first=1), ""
        while not ended.is_set():
            # Nodes that were started together must not report in step.
            pause = PERIOD * random.uniform(0.9, 1.1)  # noqa: S311  nobody gains by guessing it
            try:
                self.report()
            except FAILURES as error:
                # It may last for days, and its details may change each time.
                if type(error).__name__ != failure:
                    log.warning("budgets-not-reported error=%s", str(error))
                failure, pause = type(error).__name__, backoff.next()
            else:
                if failure:
                    log.info("budgets-reported-again")
                failure = ""
                backoff.reset()
            ended.wait(pause)

    def report(self) -> None:
        """Report once and keep the answer; after any error the last one stays, and grows old."""
        kept = self._kept()
        # Before anything is measured or sent: an answer must not look younger than it is.
        asked = self._boottime()
        state = self._ask()
        uses = {name: BudgetUse(**use) for name, use in state["uses"].items()}
        # Grows until the machine boots again, whoever runs this process again meanwhile.
        sequence = int(asked * 1000)
        known, age = kept.answer, int(kept.age(state["boot"], asked))
        report = BudgetReport(known.epoch, state["boot"], sequence, known.version, uses, age)
        answer = messages.decode(
            self._client.request("POST", PATH, messages.encode(report)), BudgetAnswer
        )
        durable.write(self._file, messages.encode(kept.after(report, asked, answer)))

    def _kept(self) -> HeldGrants:
        try:
            kept = durable.read(self._file, held.decode)
        except StateError as error:
            # The server takes a node that knows nothing for one that is new.
            log.warning("budgets-unreadable error=%s", error.message, extra=caused_by("file"))
            kept = None
        return kept or HeldGrants.before_an_answer()


def client_tls(credentials: Path) -> ssl.SSLContext:
    """Trust of a folder's ca.crt, with its tls.crt and tls.key, if there are any; ConfigError."""
    authority, cert, key = map(credentials.joinpath, TLS_FILES)
    if not authority.is_file():
        raise ConfigError(
            f"{credentials}: has no ca.crt, the authority of the server's certificate"
        )
    try:
        context = ssl.create_default_context(cafile=authority)
        if cert.exists():
            context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{credentials}: ca.crt, tls.crt and tls.key have to be PEM: {error}"
        ) from None
    return context
