"""Which node a report comes from: by its pod's token or its certificate, and never by what it says.

Kubernetes: the token that a kubelet projects into an agent's pod for the audience of this server
names the node on which the pod runs (from Kubernetes 1.30 on). It is verified by the cluster's
public keys, without a request; so that of a deleted pod holds until it expires.

Otherwise: a certificate, which TLS has verified, has the node's name among its SANs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jwt

from netmgr.errors import NetmgrError

AUDIENCE = "netmgr-budgets"

# Those that API servers sign with. Never HS256, by which a public key would do for a secret.
ALGORITHMS = ["RS256", "ES256", "ES384", "ES512"]

KEYS_SECONDS = 60.0
"""The least time between two requests for the keys, whatever tokens name."""

OLDEST_KEYS_SECONDS = 600.0

MOST_TOKENS = 30_000
"""That are remembered: verifying one takes 0.1 ms, and a node sends it a hundred times."""

_CLAIMS = ["exp", "iat", "iss", "aud", "sub"]


class IdentityRefused(NetmgrError):
    """Nothing shows which node this is; `reason` is one of few words, for metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ClusterKeys(NamedTuple):
    """The issuer of a cluster's tokens, and its public keys by their `kid`."""

    issuer: str
    keys: Mapping[str, jwt.PyJWK]

    @classmethod
    def of(cls, issuer: str, jwks: Mapping[str, Any]) -> ClusterKeys:
        """By a JWKS (RFC 7517); keys of other uses are left out."""
        keys = [jwt.PyJWK(jwk) for jwk in jwks["keys"] if jwk.get("alg") in ALGORITHMS]
        return cls(issuer, {str(key.key_id): key for key in keys})


class TokenVerifier:
    """Verifies tokens of one service account; `renew` is called each second or so, by any thread.

    Args:
        read_keys: asks the API server; a NetmgrError leaves the keys that are known.
        account: such as system:serviceaccount:netmgr:netmgr-node.
    """

    def __init__(
        self,
        read_keys: Callable[[], ClusterKeys],
        account: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_keys = read_keys
        self._account = account
        self._monotonic = monotonic
        self._known = ClusterKeys("", {})
        self._asked_at = -OLDEST_KEYS_SECONDS
        self._is_missing_one = False
        self._verified: dict[str, tuple[str, float]] = {}

    def renew(self) -> None:
        """Ask for the keys if a token named an unknown one, or they are old; NetmgrError."""
        age = self._monotonic() - self._asked_at
        longest = KEYS_SECONDS if self._is_missing_one else OLDEST_KEYS_SECONDS
        if self._known.keys and age < longest:
            return
        # Before asking: a server that is away is asked no more often.
        self._asked_at, self._is_missing_one = self._monotonic(), False
        self._known = self._read_keys()
        # A key may have been withdrawn.
        self._verified = {}

    def node(self, token: str) -> str:
        """The node whose pod has this token; IdentityRefused if it is of no agent's."""
        node, expires = self._verified.get(token, ("", 0.0))
        if expires > time.time():
            return node
        claims = self._claims(token)
        if claims["sub"] != self._account:
            raise IdentityRefused("account", f"the token is of {claims['sub']}, no agent's")
        node = _node_of(claims)
        if len(self._verified) >= MOST_TOKENS:
            self._verified = {}
        self._verified[token] = node, float(claims["exp"])
        return node

    def _claims(self, token: str) -> dict[str, Any]:
        try:
            key = self._known.keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                self._is_missing_one = True
                raise IdentityRefused("key", "the token's key is not (yet) known")
            return jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=AUDIENCE,
                issuer=self._known.issuer,
                options={"require": _CLAIMS},
            )
        except jwt.ExpiredSignatureError:
            raise IdentityRefused("expired", "the token has expired") from None
        except jwt.InvalidAudienceError:
            raise IdentityRefused("audience", f"the token is not for {AUDIENCE}") from None
        except jwt.PyJWTError as error:
            raise IdentityRefused("token", f"this is no token of the cluster: {error}") from None


def _node_of(claims: Mapping[str, Any]) -> str:
    bound = claims.get("kubernetes.io")
    node = bound.get("node") if isinstance(bound, dict) else None
    name = node.get("name") if isinstance(node, dict) else None
    if not isinstance(name, str) or not name:
        raise IdentityRefused("node", "the token names no node, as from Kubernetes 1.30 on")
    return name


def certified_node(certificate: Mapping[str, Any], nodes: Mapping[str, object]) -> str:
    """The one of `nodes` that a certificate names (as of SSLSocket.getpeercert); IdentityRefused.

    A dNSName or URI has to be the node's whole name: wildcards mean nothing here.
    """
    names = {name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")}
    named = names & nodes.keys()
    if len(named) != 1:
        raise IdentityRefused("node", f"the certificate names {len(named)} nodes of the plan")
    return str(named.pop())
