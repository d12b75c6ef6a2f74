"""Access control: TLS for the port, and a secret that clients must show.

prometheus_client's start_http_server can speak TLS, but it shakes hands in the thread that accepts,
where one silent client blocks all others; it does not follow renewed certificates, and it checks no
credentials.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import ssl
from pathlib import Path

from exporter.settings import Settings
from netmgr.errors import ConfigError
from netmgr.file_version import RenewedFiles

# What a secret looks like, by the scheme that shows it, and what to say of any other line.
_FORMS = {
    "Basic": (re.compile(r"[^:]+:.+"), "must be user:password"),
    # RFC 6750, section 2.1: b64token.
    "Bearer": (
        re.compile(r"[A-Za-z0-9\-._~+/]+=*"),
        "a token is letters, digits and -._~+/ with = at its end",
    ),
}


def tls(settings: Settings) -> RenewedFiles[ssl.SSLContext] | None:
    """The port's TLS (1.2 at least), following renewals; ConfigError if a file cannot be used."""
    cert, key, authorities = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if cert is None or key is None:
        return None
    paths = [cert, key, *([authorities] if authorities else [])]
    of_clients = ("--tls-client-ca", authorities) if authorities else None
    return RenewedFiles(
        paths, lambda: _context(("--tls-cert", cert), ("--tls-key", key), of_clients)
    )


def folder_tls(option: str, folder: Path, *, clients: bool = False) -> RenewedFiles[ssl.SSLContext]:
    """By tls.crt and tls.key, as a Secret has them; of `clients` ca.crt is the authority."""
    cert, key, authorities = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
    paths = [cert, key, *([authorities] if clients else [])]
    of_clients = (option, authorities) if clients else None
    return RenewedFiles(paths, lambda: _context((option, cert), (option, key), of_clients))


_Given = tuple[str, Path]
"""An option, and the file that it gave."""


def _context(cert: _Given, key: _Given, authorities: _Given | None) -> ssl.SSLContext:
    _read(*cert)
    _read(*key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask for that of an encrypted key at the terminal, and
        # wait.
        context.load_cert_chain(cert[1], key[1], password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{cert[0]} {cert[1]}, {key[0]} {key[1]}: not a certificate and its unencrypted "
            f"private key, both PEM ({getattr(error, 'reason', None) or error})"
        ) from None
    if authorities:
        option, file = authorities
        _read(option, file)
        try:
            context.load_verify_locations(file)
        except (OSError, ValueError):
            raise ConfigError(f"{option} {file}: holds no certificate in PEM form") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Door:
    """Checks the Authorization header against one file's secrets, of which it keeps digests alone.

    `challenge` is the WWW-Authenticate header for a refused client.
    """

    def __init__(self, scheme: str, option: str, path: Path) -> None:
        self.challenge = f'{scheme} realm="netmgr"'
        self._scheme = scheme.lower()
        self._digests = RenewedFiles([path], lambda: _digests(scheme, option, path))

    def admits(self, authorization: str) -> bool:
        scheme, _, shown = authorization.partition(" ")
        secret = shown.strip().encode()
        if self._scheme == "basic":
            try:
                secret = base64.b64decode(secret, validate=True)
            except ValueError:
                secret = b""
        digest = hashlib.sha256(secret).digest()
        # Every one is compared: the time must not tell which secret was nearly right.
        matches = [hmac.compare_digest(digest, known) for known in self._digests.value()]
        return any(matches) and scheme.lower() == self._scheme


def door(settings: Settings) -> Door | None:
    """The check that the settings ask for, if any; ConfigError if there is no file of secrets."""
    if settings.basic_auth_file:
        return Door("Basic", settings.credentials, settings.basic_auth_file)
    if settings.bearer_token_file:
        return Door("Bearer", settings.credentials, settings.bearer_token_file)
    return None


def _digests(scheme: str, option: str, path: Path) -> list[bytes]:
    form, fault = _FORMS[scheme]
    digests = []
    for number, line in enumerate(_read(option, path).splitlines(), 1):
        if not line.strip():
            continue
        if not form.fullmatch(line):
            raise ConfigError(f"{option} {path}, line {number}: {fault}")
        digests.append(hashlib.sha256(line.encode()).digest())
    if not digests:
        raise ConfigError(f"{option} {path}: is empty; write one secret a line")
    return digests


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option} {path}: is not text") from None
