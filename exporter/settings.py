"""How the exporter serves: one frozen object, checked as a whole before any port is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from netmgr.errors import ConfigError

DEFAULT_LISTEN = ":9119"
# A full node (250 pods, 20 namespaces, dual-stack) has 1,400; the rest is for lingering pods.
DEFAULT_MAX_SERIES = 5_000


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `netmgr exporter` by their names; its help says what each does."""

    listen: str = DEFAULT_LISTEN
    max_series: int = DEFAULT_MAX_SERIES
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    basic_auth_file: Path | None = None
    bearer_token_file: Path | None = None
    throughput_test: bool = False
    budgets_server: str = ""
    budgets_credentials: Path | None = None
    budgets_file: Path | None = None

    def check(self) -> tuple[str, int]:
        """Host and port to bind; ConfigError where an option makes no sense beside the others."""
        if self.max_series < 0:
            raise ConfigError(
                f"--max-series {self.max_series}: must be a number of series, or 0 for no bound"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = (
                ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            )
            raise ConfigError(
                f"{given} needs {missing} beside it: TLS takes a certificate and its private key"
            )
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError(
                "--tls-client-ca needs --tls-cert and --tls-key: without TLS no client shows a "
                "certificate"
            )
        if self.basic_auth_file and self.bearer_token_file:
            raise ConfigError(
                "--basic-auth-file and --bearer-token-file: choose one, Prometheus sends one of "
                "them only"
            )
        budgets = (self.budgets_server, self.budgets_credentials, self.budgets_file)
        if any(budgets) and not all(budgets):
            raise ConfigError(
                "--budgets-server, --budgets-credentials and --budgets-file go together; node.yaml "
                "names the file as budgets_file"
            )
        return split_address("--listen", self.listen)

    @property
    def credentials(self) -> str:
        """The option that asks clients for a secret, empty without one."""
        if self.basic_auth_file:
            return "--basic-auth-file"
        return "--bearer-token-file" if self.bearer_token_file else ""


def split_address(option: str, text: str) -> tuple[str, int]:
    """Host (may be empty) and port of an option's address; ConfigError if it is none."""
    host, colon, port = text.rpartition(":")
    # Brackets, as in URLs: without them the last group of an IPv6 address reads as a port.
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not colon
        or not (port.isascii() and port.isdigit() and int(port) < 1 << 16)
        or (bare == host and ":" in host)
    ):
        raise ConfigError(
            f"{option} {text}: must be ADDRESS:PORT, [IPV6-ADDRESS]:PORT or :PORT, for example "
            ":9119"
        )
    return bare, int(port)
