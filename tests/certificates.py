"""A certificate authority for tests, and TLS of both sides made from its files."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

HERE = ("DNS:localhost", "IP:127.0.0.1")

_KINDS: dict[str, Callable[[str], x509.GeneralName]] = {
    "DNS": x509.DNSName,
    "URI": x509.UniformResourceIdentifier,
    "EMAIL": x509.RFC822Name,
    "IP": lambda text: x509.IPAddress(ipaddress.ip_address(text)),
}


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and of its key."""

    cert: Path
    key: Path


class Authority:
    """A CA, whose certificate is the file `path`; all keys are on P-256."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        now = datetime.now(UTC)
        certificate = (
            _begun(self._name, self._name, self._key, now - timedelta(days=1), now + timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *names: str,
        folder: Path | None = None,
        common_name: str = "",
        starts: datetime | None = None,
        ends: datetime | None = None,
    ) -> Pair:
        """Write a certificate and its key as ``name.pem`` and ``name.key``, in place of older ones.

        Parameters
        ----------
        name
            Of the files.
        names
            Subject alternative names: ``DNS:localhost``, ``IP:127.0.0.1``, ``URI:spiffe://a/b``, ``EMAIL:a@b.example``.
        folder
            Where; that of the CA by default.
        common_name
            The CN; `name` by default.
        starts, ends
            When it holds: from yesterday for a month by default.
        """
        now = datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _begun(
            _named(common_name or name),
            self._name,
            key,
            starts or now - timedelta(days=1),
            ends or now + timedelta(days=30),
        ).add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if names:
            kinds = (one.split(":", 1) for one in names)
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_KINDS[kind](text) for kind, text in kinds]), critical=False
            )
        folder = folder or self._folder
        pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        pair.cert.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair

    def credentials(self, client: Pair | None = None) -> grpc.ChannelCredentials:
        """Return what a gRPC channel needs to trust this CA, and to show a client's certificate."""
        files = (client.key.read_bytes(), client.cert.read_bytes()) if client else (None, None)
        return grpc.ssl_channel_credentials(self.path.read_bytes(), *files)

    def context(self, client: Pair | None = None) -> ssl.SSLContext:
        """Return the same for a socket."""
        context = ssl.create_default_context(cafile=str(self.path))
        if client:
            context.load_cert_chain(client.cert, client.key)
        return context


def server_options(server: Pair, client_ca: Path | None = None) -> list[str]:
    """Return the options of `gpkvs serve` that turn TLS on, and mTLS with a client CA."""
    options = ["--tls-cert", str(server.cert), "--tls-key", str(server.key)]
    return options if client_ca is None else [*options, "--tls-client-ca", str(client_ca)]


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, starts: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
    )
