"""Whose report it is: only a token of an agent's pod, or a node's certificate, says which node."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from netmgr.budgets.identity import (
    AUDIENCE,
    KEYS_SECONDS,
    OLDEST_KEYS_SECONDS,
    ClusterKeys,
    IdentityRefused,
    TokenVerifier,
    certified_node,
)
from netmgr.errors import ApiUnavailable
from tests.waiting import eventually

ISSUER, ACCOUNT = "https://kubernetes.default.svc", "system:serviceaccount:netmgr:netmgr-node"
PRIVATE = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
}
FOREIGN = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def published(*names: str) -> ClusterKeys:
    """The keys as /openid/v1/jwks has them, with the algorithm for a `kid`."""
    keys = []
    for name in names:
        algorithm = jwt.get_algorithm_by_name(name)
        jwk = algorithm.to_jwk(PRIVATE[name].public_key(), as_dict=True)
        keys.append(jwk | {"kid": name, "alg": name, "use": "sig"})
    return ClusterKeys.of(ISSUER, {"keys": keys})


def claims(**changed: Any) -> dict[str, Any]:
    """Those of a token that a kubelet projects (TokenRequest, bound to a pod)."""
    now = int(time.time())
    bound = {
        "namespace": "netmgr",
        "node": {"name": "node-1", "uid": "1"},
        "pod": {"name": "netmgr-x", "uid": "2"},
        "serviceaccount": {"name": "netmgr-node", "uid": "3"},
    }
    own = {"aud": [AUDIENCE], "iss": ISSUER, "sub": ACCOUNT, "iat": now, "nbf": now}
    return own | {"exp": now + 86_400, "kubernetes.io": bound} | changed


def token(content: Mapping[str, Any], algorithm: str = "RS256", **header: str) -> str:
    key = PRIVATE[algorithm]
    return jwt.encode(dict(content), key, algorithm, headers={"kid": algorithm} | header)


def encoded(part: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


def forged(algorithm: str, sign: Callable[[bytes], bytes]) -> str:
    """By hand: PyJWT makes no such token."""
    signed = encoded({"alg": algorithm, "kid": "RS256", "typ": "JWT"}) + b"." + encoded(claims())
    signature = base64.urlsafe_b64encode(sign(signed)).rstrip(b"=")
    return (signed + b"." + signature).decode()


def by_the_public_key(message: bytes) -> bytes:
    public = PRIVATE["RS256"].public_key()
    secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hmac.new(secret, message, hashlib.sha256).digest()


def verifier(*names: str) -> TokenVerifier:
    made = TokenVerifier(lambda: published(*(names or PRIVATE)), ACCOUNT)
    made.renew()
    return made


def refusal(verify: TokenVerifier, shown: str) -> str:
    """Why a token is refused; of one that is taken for the first node's, nothing."""
    try:
        assert verify.node(shown) == "node-1"
    except IdentityRefused as error:
        return error.reason
    return ""


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_a_token_of_an_agents_pod_is_of_its_node(algorithm: str) -> None:
    verify, shown = verifier(), token(claims(), algorithm)
    # The second time it is remembered.
    assert [refusal(verify, shown) for _ in range(2)] == ["", ""]


NOW = int(time.time())
OTHERS = {
    "another audience": (token(claims(aud=["https://kubernetes.default.svc"])), "audience"),
    "no audience": (token({k: v for k, v in claims().items() if k != "aud"}), "token"),
    "another account": (token(claims(sub="system:serviceaccount:a:netmgr-node")), "account"),
    "an expired token": (token(claims(exp=NOW - 1)), "expired"),
    "one without an end": (token({k: v for k, v in claims().items() if k != "exp"}), "token"),
    "one that is not valid yet": (token(claims(nbf=NOW + 3600)), "token"),
    "another issuer": (token(claims(iss="https://another.example.com")), "token"),
    "one that is bound to no node": (token(claims(**{"kubernetes.io": {}})), "node"),
    "an odd node": (token(claims(**{"kubernetes.io": {"node": {"name": ["a"]}}})), "node"),
    "an empty node": (token(claims(**{"kubernetes.io": {"node": {"name": ""}}})), "node"),
    "an unknown key": (token(claims(), kid="another"), "key"),
    "another cluster's key": (jwt.encode(claims(), FOREIGN, "RS256", {"kid": "RS256"}), "token"),
    "another's key for this": (token(claims(), "ES256", kid="RS256"), "token"),
    "no algorithm": (forged("none", lambda _: b""), "token"),
    "a public key as a secret": (forged("HS256", by_the_public_key), "token"),
    "no token": ("", "token"),
    "nested without end": (
        base64.urlsafe_b64encode(b'{"a":' + b"[" * 5000).decode().rstrip("=") + ".e30.x",
        "token",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_token_of_an_agent_is_refused(name: str) -> None:
    shown, reason = OTHERS[name]
    verify = verifier()
    assert [refusal(verify, shown) for _ in range(2)] == [reason, reason]


def test_a_remembered_token_is_refused_once_it_has_expired() -> None:
    verify, shown = verifier(), token(claims(exp=int(time.time()) + 2))
    assert refusal(verify, shown) == ""
    eventually(lambda: refusal(verify, shown) == "expired")


class KeysOverTime:
    """An API server whose keys change, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.names = ["RS256"]
        self.asked = 0
        self.is_away = False
        self.verify = TokenVerifier(self.read, ACCOUNT, lambda: self.now)

    def read(self) -> ClusterKeys:
        self.asked += 1
        if self.is_away:
            raise ApiUnavailable("away")
        return published(*self.names)

    def is_known(self, algorithm: str) -> bool:
        return refusal(self.verify, token(claims(), algorithm)) != "key"


def test_an_unknown_key_has_the_keys_read_again_at_most_once_a_minute() -> None:
    server = KeysOverTime()
    server.verify.renew()
    server.names.append("ES256")
    for _ in range(100):
        assert not server.is_known("ES256")
        server.verify.renew()
    assert server.asked == 1
    server.now = KEYS_SECONDS
    server.verify.renew()
    assert server.is_known("ES256")
    # Known keys are no reason to ask.
    server.now = 2 * KEYS_SECONDS
    assert server.is_known("RS256")
    server.verify.renew()
    assert server.asked == 2


def test_a_withdrawn_key_is_forgotten_with_the_tokens_that_it_signed() -> None:
    server = KeysOverTime()
    server.verify.renew()
    assert server.is_known("RS256")
    server.names = ["ES256"]
    server.now = OLDEST_KEYS_SECONDS
    server.verify.renew()
    assert not server.is_known("RS256")


def test_keys_stay_while_the_api_server_is_away() -> None:
    server = KeysOverTime()
    server.verify.renew()
    server.is_away, server.now = True, OLDEST_KEYS_SECONDS
    with pytest.raises(ApiUnavailable):
        server.verify.renew()
    server.verify.renew()
    assert server.asked == 2
    assert server.is_known("RS256")


def test_keys_that_were_never_read_are_asked_for_each_time() -> None:
    server = KeysOverTime()
    server.is_away = True
    for _ in range(2):
        with pytest.raises(ApiUnavailable):
            server.verify.renew()
    server.is_away = False
    server.verify.renew()
    assert server.is_known("RS256")


PLANNED = {"train-gpu-0": 0, "train-gpu-1": 0}


@pytest.mark.parametrize("kind", ["DNS", "URI"])
def test_a_certificate_with_the_name_of_a_planned_node_is_that_nodes(kind: str) -> None:
    names = (("DNS", "host.example.com"), (kind, "train-gpu-1"), ("IP Address", "10.0.0.1"))
    assert certified_node({"subjectAltName": names}, PLANNED) == "train-gpu-1"


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "train-gpu-2"),),
        (("DNS", "*"),),
        (("DNS", "train-gpu-*"),),
        (("IP Address", "train-gpu-0"),),
        (("DNS", "train-gpu-0"), ("DNS", "train-gpu-1")),
    ],
)
def test_a_certificate_of_no_node_or_of_two_is_refused(names: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(IdentityRefused):
        certified_node({"subjectAltName": names}, PLANNED)
