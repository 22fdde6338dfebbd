"""TLS and a user for the servers of one run: a certificate and a token that are of no use to anybody else."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gpkvs.server.access.users import make_token

_LASTS = timedelta(days=90)


@dataclass(frozen=True)
class RunAccess:
    """What a run's servers and clients need.

    Parameters
    ----------
    cert, key
        A certificate of 127.0.0.1 that signs itself, and its key.
    users
        The users' file.
    token
        Of its only user, who may do everything.
    """

    cert: Path
    key: Path
    users: Path
    token: str = field(repr=False)

    @property
    def tls_options(self) -> tuple[str, ...]:
        """Options of `gpkvs serve` for TLS."""
        return (f"--tls-cert={self.cert}", f"--tls-key={self.key}")

    @property
    def users_option(self) -> str:
        """The option of `gpkvs serve` for the user."""
        return f"--users={self.users}"

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what the clients' channels take: they trust the certificate and send the token."""
        return grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(self.cert.read_bytes()), grpc.access_token_call_credentials(self.token)
        )


def make_access(folder: Path) -> RunAccess:
    """Make a certificate and a user; their files go to a new folder."""
    folder.mkdir(mode=0o700)
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpkvs run")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(here, critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    token, token_id, sha256 = make_token()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return RunAccess(
        _write(folder / "server.pem", certificate),
        _write(folder / "server.key", pem),
        _write(folder / "users.toml", _USER.format(token_id, sha256.hex(), now, now + _LASTS).encode()),
        token,
    )


_USER = """[users.run]
read = ["*"]
write = ["*"]
admin = ["*"]
[users.run.tokens.{}]
sha256 = "{}"
created = {:%Y-%m-%dT%H:%M:%SZ}
ends = {:%Y-%m-%dT%H:%M:%SZ}
"""


def _write(file: Path, content: bytes) -> Path:
    file.touch(mode=0o600)
    file.write_bytes(content)
    return file
