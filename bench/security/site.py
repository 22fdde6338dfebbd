"""What the servers of the benchmark show and ask for: a certificate of their own, and a user with a token."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gpkvs.server.access.users import make_token

USER = "bench"


@dataclass(frozen=True)
class Site:
    """Files of a server, and the secret of its user.

    Parameters
    ----------
    cert, key
        A certificate of 127.0.0.1 that signs itself, on P-256, and its key.
    users
        The users' file.
    token
        Of its only user, who may do everything.
    """

    cert: Path
    key: Path
    users: Path
    token: str


def make_site(folder: Path) -> Site:
    """Write a certificate, its key and a file with one user."""
    text, token_id, sha256 = make_token()
    now = datetime.now(UTC)
    user = f'[users.{USER}]\nread = ["*"]\nwrite = ["*"]\nadmin = ["*"]\n[users.{USER}.tokens.{token_id}]\n'
    user += f'sha256 = "{sha256.hex()}"\ncreated = {_written(now)}\nends = {_written(now + timedelta(days=1))}\n'
    cert, key = _certificate(now)
    return Site(
        _private(folder / "server.pem", cert),
        _private(folder / "server.key", key),
        _private(folder / "users.toml", user.encode()),
        text,
    )


def _written(time: datetime) -> str:
    return time.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def _private(path: Path, data: bytes) -> Path:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
    return path


def _certificate(now: datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpkvs bench")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(here, critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
