"""Certificates, keys and CAs in files: read and checked, with errors that say what is wrong with which file."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from gpkvs.server.ports.tls import Material, TlsFiles, TlsFilesError, TlsFilesUnsettledError

_log = logging.getLogger("gpkvs.server")

_GROUP, _OTHERS = 0o070, 0o007
# gRPC's clients offer no Ed25519 and no P-521.
_CURVES, _RSA_BITS_MIN = ("secp256r1", "secp384r1"), 2048


def load(files: TlsFiles) -> Material:
    """Read and check all files.

    Raises
    ------
    TlsFilesError
        If one is wrong.
    """
    cert, key = _read(files.cert, "tls_cert"), _read_key(files.key)
    chain = _certificates(cert, files.cert, "tls_cert")
    _require_fit(chain[0], key, files)
    _require_valid_now(chain, files.cert)
    ends, authorities, roots = {"server": min(one.not_valid_after_utc for one in chain)}, [], None
    if files.client_ca:
        roots = _read(files.client_ca, "tls_client_ca")
        authorities = _certificates(roots, files.client_ca, "tls_client_ca")
        _require_valid_ca(authorities, files.client_ca)
        ends["client_ca"] = min(one.not_valid_after_utc for one in authorities)
    try:
        context = _context(files, authorities)
    finally:  # the context takes its files by their names
        if (cert, key) != (_read(files.cert, "tls_cert"), _read(files.key, "tls_key")):
            raise TlsFilesUnsettledError(f"{files.cert} or {files.key} changed while they were read")
    return Material(cert, key, roots, context, ends)


def _context(files: TlsFiles, authorities: list[x509.Certificate]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # Python can name one group alone, and every client of TLS 1.3 has this one. OpenSSL would also take those of finite
    # fields, in which a client that sends the same bytes again and again costs the server 125 ms each time.
    context.set_ecdh_curve("prime256v1")
    try:
        context.load_cert_chain(files.cert, files.key, password=b"")  # it would ask the terminal for one
        if authorities:
            context.load_verify_locations(cadata=b"".join(one.public_bytes(Encoding.DER) for one in authorities))
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "not usable"
        raise TlsFilesError(f"{files.cert} and {files.key} are refused by OpenSSL: {reason}") from error
    return context


def _read(path: Path, option: str) -> bytes:
    with _readable(path, option):
        return path.read_bytes()


def _read_key(path: Path) -> bytes:
    """Read a private key, if not everybody may do so."""
    with _readable(path, "tls_key"), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & _OTHERS:
            raise TlsFilesError(
                f"tls_key: anybody may read or write {path} (its mode is {mode:04o}): chmod 600 it, and make a new key "
                "if others have had the chance to read this one"
            )
        if mode & _GROUP:
            _log.warning("tls_key: the group may read or write %s (its mode is %04o): chmod 600 it", path, mode)
        return file.read()


@contextmanager
def _readable(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TlsFilesError(f"{option}: cannot read {path}: {error.strerror}") from error


def _certificates(data: bytes, path: Path, option: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise TlsFilesUnsettledError(
            f"{option}: {path} holds no certificate, or a broken one: it takes certificates as PEM"
        ) from error


def _require_fit(certificate: x509.Certificate, key: bytes, files: TlsFiles) -> None:
    """Raise unless a key is one that clients know, without a password, and that of a certificate."""
    try:
        private = load_pem_private_key(key, None)
        is_own = _packed(private.public_key()) == _packed(certificate.public_key())
    except TypeError:
        raise TlsFilesError(
            f"tls_key: {files.key} has a password, which the server cannot know: write it without one (openssl pkey), "
            "readable by the server only"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise TlsFilesUnsettledError(
            f"tls_key: {files.key} holds no private key, or a broken one: it takes one as PEM"
        ) from None
    is_known = (
        private.curve.name in _CURVES
        if isinstance(private, ec.EllipticCurvePrivateKey)
        else isinstance(private, rsa.RSAPrivateKey) and private.key_size >= _RSA_BITS_MIN
    )
    if not is_known:
        raise TlsFilesError(
            f"tls_key: {files.key} is of a kind that clients do not take: make one for ECDSA on P-256 or P-384, or for "
            f"RSA of at least {_RSA_BITS_MIN} bits"
        )
    if not is_own:
        raise TlsFilesUnsettledError(f"tls_key: {files.key} is not the key of the first certificate in {files.cert}")


def _packed(key: Any) -> bytes:
    data: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return data


def _require_valid_now(chain: list[x509.Certificate], path: Path) -> None:
    now = datetime.now(UTC)
    for one in chain:
        if one.not_valid_after_utc < now:
            raise TlsFilesError(f"tls_cert: a certificate in {path} ended on {_day(one.not_valid_after_utc)}: renew it")
        if one.not_valid_before_utc > now:
            raise TlsFilesError(
                f"tls_cert: a certificate in {path} begins on {_day(one.not_valid_before_utc)}: wait, or set the clock"
            )


def _require_valid_ca(authorities: list[x509.Certificate], path: Path) -> None:
    """Raise unless some certificate holds now: an old one may stand beside the one that follows it."""
    now = datetime.now(UTC)
    if not any(one.not_valid_before_utc <= now <= one.not_valid_after_utc for one in authorities):
        raise TlsFilesError(f"tls_client_ca: none of the certificates in {path} is valid now: renew them")


def _day(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
