"""A certificate authority of a test's own, and what it certifies."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._numbers = 0
        own = x509.BasicConstraints(ca=True, path_length=None)
        key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = self._builder(self._key, self._name).add_extension(own, critical=True)
        use = x509.KeyUsage(
            **dict.fromkeys(
                (
                    *("digital_signature", "content_commitment", "key_encipherment"),
                    *("data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
                ),
                False,
            ),
            key_cert_sign=True,
            crl_sign=True,
        )
        builder = builder.add_extension(use, critical=True)
        made = builder.add_extension(key_id, critical=False).sign(self._key, hashes.SHA256())
        self.file = folder / "ca.crt"
        self.file.write_bytes(made.public_bytes(Encoding.PEM))

    def certify(self, *names: str, folder: str = "") -> Path:
        """A folder with a certificate for these names (those with a colon are URIs), its key, and
        the authority's own, named as in a Secret.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "some")])
        san = x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier(n) if ":" in n else x509.DNSName(n) for n in names]
        )
        # Without it, Python 3.13 takes none.
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = self._builder(key, subject).add_extension(san, critical=False)
        builder = builder.add_extension(issuer, critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        self._numbers += 1
        to = self._folder / (folder or f"certified-{self._numbers}")
        to.mkdir(exist_ok=True)
        kept = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (to / "tls.key").write_bytes(key.private_bytes(*kept))
        (to / "tls.crt").write_bytes(made.public_bytes(Encoding.PEM))
        (to / "ca.crt").write_bytes(self.file.read_bytes())
        return to

    def client(self, folder: Path | None = None) -> ssl.SSLContext:
        """What a client trusts, and shows from a folder."""
        context = ssl.create_default_context(cafile=self.file)
        if folder:
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        return context

    def _builder(self, key: ec.EllipticCurvePrivateKey, subject: x509.Name):
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        # The second authority of a name has another key; no clock of a test is behind by a day.
        day = timedelta(days=1)
        return builder.not_valid_before(now - day).not_valid_after(now + day)
