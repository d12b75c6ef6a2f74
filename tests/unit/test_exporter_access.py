"""Real TLS and real credentials: who is let in, who is not, and what makes no sense is refused
before a port opens.
"""

from __future__ import annotations

import base64
import logging
import re
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from exporter.server import Server
from exporter.settings import Settings
from netmgr import programs
from netmgr.errors import ConfigError
from tests.fakes.agent_socket import snapshot
from tests.fakes.exporter_port import certificate, get, serving
from tests.waiting import eventually

SERVING = "process_request_thread"
"""What a thread of socketserver's is named by."""

WHOLE = b"GET /metrics HTTP/1.1\r\n\r\n"
TOKEN = "c2VjcmV0LXRva2Vu.-_~+/=="  # noqa: S105  opens nothing but this file's doors


def read():
    return snapshot(2, 1)


def basic(pair: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


def trusting(cert: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cert)


@pytest.mark.parametrize(
    "path", ["/metrics", "/", "/report", "/usage", "/metrics?name[]=netmgr_up"]
)
def test_a_password_opens_what_tells_traffic_and_nothing_else_does(
    tmp_path: Path, path: str
) -> None:
    pairs = written(tmp_path / "pairs", "prometheus:correct horse: battery\n\nsecond:pässword\n")
    of_second = basic("second:pässword")
    wrong = ("prometheus:wrong", "prometheus:correct horse: battery ", "")
    refused = ("Basic", "Basic ?", "Bearer prometheus:correct horse: battery")
    with serving(read, basic_auth_file=pairs) as port:
        for good in (basic("prometheus:correct horse: battery"), of_second):
            assert get(port, path, **good)[0].status == 200
        for headers in (
            {},
            *map(basic, (*wrong, "second:correct horse: battery")),
            *({"Authorization": value} for value in refused),
            {"Authorization": of_second["Authorization"].replace("Basic", "Bearer")},
        ):
            response, body = get(port, path, **headers)
            assert response.status == 401
            assert response.getheader("WWW-Authenticate") == 'Basic realm="netmgr"'
            assert b"netmgr_" not in body


def test_a_token_opens_what_tells_traffic_and_nothing_else_does(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens", f"{TOKEN}\nnext-one\n")
    refused = (f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer", "")
    with serving(read, bearer_token_file=tokens) as port:
        for good in (f"Bearer {TOKEN}", "bearer next-one"):
            assert get(port, Authorization=good)[0].status == 200
        for bad in (*refused, f"Bearer {TOKEN}\tnext-one"):
            response, _ = get(port, Authorization=bad)
            assert response.status == 401
            assert response.getheader("WWW-Authenticate") == 'Bearer realm="netmgr"'
        # Probes need no secret.
        codes = [get(port, path)[0].status for path in ("/healthz", "/readyz", "/nothing")]
        assert codes == [200, 200, 404]


def test_a_renewed_secret_replaces_the_old_and_a_broken_one_does_not(
    tmp_path: Path, caplog
) -> None:
    caplog.set_level(logging.INFO)
    tokens = written(tmp_path / "tokens", "old")
    with serving(read, bearer_token_file=tokens) as port:

        def outcomes() -> list[int]:
            tokens = ("Bearer old", "Bearer renewed")
            return [get(port, Authorization=token)[0].status for token in tokens]

        assert outcomes() == [200, 401]
        tokens.write_text("renewed")
        assert outcomes() == [401, 200]
        for broken in ("", "not a token"):
            tokens.write_text(broken)
            assert outcomes() == [401, 200]
        tokens.unlink()
        assert outcomes() == [401, 200]
    events = re.findall(r"netmgr\.file_version:\S+ (\S+)", caplog.text)
    assert events == ["files-renewed", *["files-not-renewed"] * 3]
    assert "not a token" not in caplog.text


@pytest.mark.programs
def test_tls_is_spoken_to_whoever_trusts_the_certificate_and_nothing_else_is_spoken(pair) -> None:
    cert, key = pair
    with serving(read, tls_cert=cert, tls_key=key) as port:
        response, body = get(port, tls=trusting(cert))
        assert response.status == 200
        assert b"netmgr_up 1.0" in body
        with pytest.raises(ssl.SSLCertVerificationError):
            get(port, tls=ssl.create_default_context())
        with pytest.raises(ConnectionError):
            get(port)
        assert get(port, "/healthz", tls=trusting(cert))[0].status == 200


@pytest.mark.programs
def test_a_client_that_never_shakes_hands_holds_nobody_up(pair) -> None:
    cert, key = pair
    with (
        serving(read, tls_cert=cert, tls_key=key) as port,
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as half,
    ):
        half.sendall(b"\x16\x03\x01")
        assert get(port, tls=trusting(cert))[0].status == 200


@pytest.mark.programs
@pytest.mark.parametrize(
    ("said", "reads"), [(b"", 0), (b"GET /m", 0), (WHOLE, 0), (WHOLE, 1)], ids=repr
)
def test_clients_that_close_early_leave_no_line(
    pair,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    said: bytes,
    reads: int,
) -> None:
    cert, key = pair
    caplog.set_level(logging.DEBUG)
    page = snapshot(5000, 1)
    with serving(lambda: page, tls_cert=cert, tls_key=key) as port:
        with (
            socket.socket() as plain,
            trusting(cert).wrap_socket(plain, server_hostname="localhost") as client,
        ):
            # So little that the answer is still being written when its client goes.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(said)
            for _ in range(reads):
                client.recv(1)
        eventually(lambda: not [each for each in threading.enumerate() if SERVING in each.name])
    assert not [each for each in caplog.records if each.levelno > logging.DEBUG]
    assert capfd.readouterr().err == ""


@pytest.mark.programs
def test_only_clients_with_a_certificate_are_let_in_where_that_is_asked_for(
    pair, tmp_path: Path
) -> None:
    cert, key = pair
    client_cert, client_key = certificate(tmp_path, "prometheus")
    stranger = certificate(tmp_path, "stranger")
    with serving(read, tls_cert=cert, tls_key=key, tls_client_ca=client_cert) as port:
        known = trusting(cert)
        known.load_cert_chain(client_cert, client_key)
        assert get(port, tls=known)[0].status == 200
        unknown = trusting(cert)
        unknown.load_cert_chain(*stranger)
        for context in (trusting(cert), unknown):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                get(port, tls=context)


@pytest.mark.programs
def test_a_renewed_certificate_is_shown_from_the_next_connection_on(pair, tmp_path: Path) -> None:
    cert, key = (shutil.copy(path, tmp_path) for path in pair)
    (tmp_path / "next").mkdir()
    renewed = certificate(tmp_path / "next")
    with serving(read, tls_cert=Path(cert), tls_key=Path(key)) as port:
        assert get(port, tls=trusting(pair[0]))[0].status == 200
        Path(cert).write_bytes(renewed[0].read_bytes())
        # Half renewed: certificate and key do not belong together, and the old ones stay in force.
        assert get(port, tls=trusting(pair[0]))[0].status == 200
        Path(key).write_bytes(renewed[1].read_bytes())
        assert get(port, tls=trusting(renewed[0]))[0].status == 200


@pytest.mark.programs
def test_a_password_travels_inside_tls_on_any_address(pair, tmp_path: Path) -> None:
    cert, key = pair
    pairs = written(tmp_path / "pairs", "prometheus:secret")
    with serving(read, listen=":0", tls_cert=cert, tls_key=key, basic_auth_file=pairs) as port:
        assert get(port, tls=trusting(cert))[0].status == 401
        assert get(port, tls=trusting(cert), **basic("prometheus:secret"))[0].status == 200


HERE = Path("here")
CONTRADICTIONS = [
    ({"tls_cert": HERE}, "--tls-cert needs --tls-key"),
    ({"tls_key": HERE}, "--tls-key needs --tls-cert"),
    ({"tls_client_ca": HERE}, "--tls-client-ca needs --tls-cert and --tls-key"),
    ({"basic_auth_file": HERE, "bearer_token_file": HERE}, "choose one"),
    ({"max_series": -1}, "--max-series -1: must be"),
    ({"basic_auth_file": Path("gone")}, "--basic-auth-file gone: No such file"),
    ({"bearer_token_file": Path("/")}, "--bearer-token-file /: Is a directory"),
    ({"tls_cert": Path("gone"), "tls_key": HERE}, "--tls-cert gone: No such file"),
    ({"tls_cert": HERE, "tls_key": Path("gone")}, "--tls-key gone: No such file"),
    ({"tls_cert": HERE, "tls_key": HERE}, "not a certificate and its unencrypted private key"),
]


@pytest.mark.parametrize(
    ("options", "sentence"), CONTRADICTIONS, ids=[sentence for _, sentence in CONTRADICTIONS]
)
def test_what_makes_no_sense_is_refused_before_a_port_is_opened(
    tmp_path: Path, monkeypatch, options: dict, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(HERE, "user:password")
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as taken:  # had it been bound first, this would be the complaint
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=sentence):
            Server(Settings(listen, **options), read)


@pytest.mark.parametrize(
    ("option", "text", "sentence"),
    [
        ("basic_auth_file", "", "is empty"),
        ("basic_auth_file", "\n \n", "is empty"),
        ("basic_auth_file", "user:right\nhunter2\n", "line 2: must be user:password"),
        ("basic_auth_file", ":hunter2", "line 1: must be user:password"),
        ("bearer_token_file", "good\nhunter2 hunter2", "line 2: a token is"),
        ("bearer_token_file", "hunter2ä", "line 1: a token is"),
    ],
)
def test_a_file_without_a_usable_secret_is_refused_and_its_secrets_are_not_repeated(
    tmp_path: Path, option: str, text: str, sentence: str
) -> None:
    path = written(tmp_path / "secrets", text)
    with pytest.raises(ConfigError, match=sentence) as refusal:
        Server(Settings("127.0.0.1:0", **{option: path}), read)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("listen", [":0", "0.0.0.0:0", "[::]:0"])
def test_a_secret_is_not_asked_for_in_the_clear_beyond_this_machine(
    tmp_path: Path, listen: str
) -> None:
    with pytest.raises(ConfigError, match="--bearer-token-file without TLS"):
        Server(Settings(listen, bearer_token_file=written(tmp_path / "tokens", TOKEN)), read)


@pytest.mark.programs
def test_an_encrypted_key_is_refused(pair, tmp_path: Path) -> None:
    cert, key = pair
    locked = tmp_path / "locked.key"
    openssl = programs.locate("openssl", "openssl")
    programs.run([openssl, "ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked])
    with pytest.raises(ConfigError, match="unencrypted"):
        Server(Settings("127.0.0.1:0", tls_cert=cert, tls_key=locked), read)
