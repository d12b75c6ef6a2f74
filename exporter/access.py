"""Who may read: TLS for the port, and a secret that clients must show.

prometheus_client's own start_http_server can speak TLS, but it shakes hands in the thread that accepts, where
one silent client holds up all others, and it has no answer to renewed certificates; it has nothing that checks
credentials. So both are here, in as little as they take.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import ssl
from collections.abc import Callable
from pathlib import Path

from exporter.followed import Followed
from exporter.settings import Settings
from netmgr.errors import ConfigError

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750, section 2.1: b64token."""

_Digests = tuple[bytes, ...]


def tls(settings: Settings) -> Followed[ssl.SSLContext] | None:
    """The port's TLS, TLS 1.2 at least, following renewals; None where none is wanted.

    Raises:
        ConfigError: a file cannot be read, or certificate and key do not belong together.
    """
    cert, key, authorities = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if cert is None or key is None:
        return None
    paths = [cert, key, *([authorities] if authorities else [])]
    return Followed(paths, lambda: _context(cert, key, authorities))


def _context(cert: Path, key: Path, authorities: Path | None) -> ssl.SSLContext:
    _read("--tls-cert", cert)
    _read("--tls-key", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tls-cert {cert}, --tls-key {key}: not a certificate and its unencrypted private key, both PEM"
            f" ({getattr(error, 'reason', None) or error})"
        ) from None
    if authorities:
        _read("--tls-client-ca", authorities)
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError):
            raise ConfigError(f"--tls-client-ca {authorities}: holds no certificate in PEM form") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Door:
    """Checks the Authorization header against the secrets of one file.

    Only digests of the secrets are kept. Every one of them is compared, each in constant time.

    Attributes:
        challenge: what a refused client is told to send (WWW-Authenticate).
    """

    def __init__(self, scheme: str, option: str, path: Path, fault: Callable[[str], str]) -> None:
        self.challenge = f'{scheme} realm="netmgr"'
        self._scheme = scheme.lower()
        self._digests = Followed([path], lambda: _secrets(option, path, fault))

    def admits(self, authorization: str) -> bool:
        """Whether the header's value shows one of the secrets."""
        scheme, _, shown = authorization.partition(" ")
        secret = _decoded(shown) if self._scheme == "basic" else shown.strip().encode()
        digest = hashlib.sha256(secret).digest()
        found = [hmac.compare_digest(digest, known) for known in self._digests.value()]
        return any(found) and scheme.lower() == self._scheme


def door(settings: Settings) -> Door | None:
    """The door that the settings ask for; None where everybody may read.

    Raises:
        ConfigError: the file of secrets cannot be read or holds none; the message never repeats one.
    """
    if settings.basic_auth_file:
        return Door("Basic", settings.credentials, settings.basic_auth_file, _pair_fault)
    if settings.bearer_token_file:
        return Door("Bearer", settings.credentials, settings.bearer_token_file, _token_fault)
    return None


def _secrets(option: str, path: Path, fault: Callable[[str], str]) -> _Digests:
    lines = {number: line for number, line in enumerate(_read(option, path).splitlines(), 1) if line.strip()}
    if not lines:
        raise ConfigError(f"{option} {path}: is empty; write one secret a line")
    for number, line in lines.items():
        if wrong := fault(line):
            raise ConfigError(f"{option} {path}, line {number}: {wrong}")
    return tuple(hashlib.sha256(line.encode()).digest() for line in lines.values())


def _pair_fault(line: str) -> str:
    user, _, password = line.partition(":")
    return "" if user and password else "must be user:password"


def _token_fault(line: str) -> str:
    return "" if _TOKEN.fullmatch(line) else "a token is letters, digits and -._~+/ with = at its end"


def _decoded(shown: str) -> bytes:
    """The pair in a Basic header; no pair at all where it is not base64."""
    try:
        return base64.b64decode(shown.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option} {path}: is no text") from None
