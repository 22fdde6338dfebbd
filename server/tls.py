"""TLS of both ports, 1.3 only, from files that are read again when they change.

All files are checked before they count. At the start a wrong one is an error; later the server keeps what it has and
says what is wrong. Open connections stay as they are; each new one sees the newest files. A client may take up a
session only of the last hour, and none from before a change: so the CAs of today decide.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpkvs.config import ServerConfig
from gpkvs.config_checks import raise_faults
from gpkvs.errors import GpkvsError
from gpkvs.server.access.audit import NO_AUDIT, AuditLog
from gpkvs.server.setting_checks import tls_faults
from gpkvs.server.watched_files import WatchedFiles, look_at

_log = logging.getLogger("gpkvs.server")

# A start waits so long for the rest of a file, and for the second one of a pair.
_SETTLE_SECONDS_MAX = 5.0
_SETTLE_LOOK_SECONDS = 1.0


class TlsFilesError(GpkvsError):
    """A certificate, a key or a file of CAs is not what TLS needs."""


class TlsFilesUnsettledError(TlsFilesError):
    """A file is not whole, or certificate and key do not fit: somebody may be in the middle of replacing them."""


class TlsFiles(NamedTuple):
    """The files that make TLS."""

    cert: Path
    key: Path
    client_ca: Path | None

    @property
    def paths(self) -> list[Path]:
        """Those that there are."""
        return [path for path in self if path]


class Material(NamedTuple):
    """What a good set of files gives.

    Parameters
    ----------
    cert, key, client_ca
        The files' bytes.
    context
        The same for sockets.
    ends
        When the first certificate of each kind, ``server`` and ``client_ca``, ends.
    """

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    ends: Mapping[str, datetime]


def tls_files(config: ServerConfig) -> TlsFiles | None:
    """Return the files that the settings name; None without TLS.

    Raises
    ------
    InvalidArgumentError
        If some are missing.
    """
    raise_faults(tls_faults(config))
    if config.tls_cert and config.tls_key:
        return TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca)
    return None


class Tls:
    """What both ports need for TLS.

    Parameters
    ----------
    files
        Where it comes from.
    audit
        Notes the changes of the files.

    Raises
    ------
    TlsFilesError
        If a file is wrong; `TlsFilesUnsettledError` if one is not whole, or the two do not fit, after some seconds.
    """

    def __init__(self, files: TlsFiles, audit: AuditLog = NO_AUDIT) -> None:
        self.files = files
        self._audit = audit
        self.is_good = True  # the newest files are in force
        self._reloading = threading.Lock()
        self._seen = look_at(files.paths)
        self._give_away: Callable[[Material], None] = lambda _: None
        self._take(_load_settled(files))

    def _take(self, material: Material) -> None:
        self._give_away(material)
        self._material = material

    def give(self, take: Callable[[Material], None]) -> None:
        """Give what is in force to somebody else who makes handshakes of it, now and after each change.

        Parameters
        ----------
        take
            Is given it, in any thread, one at a time. It raises TlsFilesError if it cannot use it: all stays as it was.

        Raises
        ------
        TlsFilesError
            If it cannot be used now.
        """
        with self._reloading:
            take(self._material)
            self._give_away = take

    @property
    def context(self) -> ssl.SSLContext:
        """For a new connection of a socket; with a client CA, its client may show a certificate."""
        return self._material.context

    @property
    def certificates(self) -> Iterable[str]:
        """The kinds of certificates: ``server``, and ``client_ca`` if there is one."""
        return self._material.ends.keys()

    def end_timestamp(self, certificate: str) -> float:
        """Return when the first certificate of a kind ends, in seconds since 1970."""
        return self._material.ends[certificate].timestamp()

    def watch(self) -> WatchedFiles:
        """Read the files again when they change, until what this returns is closed."""
        return WatchedFiles(self.files.paths, self.reload, seen=self._seen)

    def reload(self) -> bool:
        """Read the files again, in any thread; return whether all are right. If not, log that and change nothing."""
        with self._reloading:
            try:
                self._take(_load(self.files))
            except TlsFilesError as error:
                self.is_good = False
                _log.error("%s; TLS stays as it was", error, extra={"event": "tls_changed", "good": False})
                self._audit.note("tls_changed", good=False)
                return False
            self.is_good = True
            end = self._material.ends["server"]
            fields = {"good": True, "certificate_end": end.isoformat()}
            _log.info(
                "TLS files read again; the certificate ends on %s",
                f"{end:%Y-%m-%d}",
                extra={"event": "tls_changed", **fields},
            )
            self._audit.note("tls_changed", **fields)
            return True


def names_of_certificate(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in a certificate as `ssl.SSLSocket.getpeercert` returns it; never the common name."""
    kinds = {"DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}
    return tuple(_name(kinds[kind], text) for kind, text in certificate.get("subjectAltName", ()) if kind in kinds)


def _name(kind: str, text: str) -> str:
    if kind == "IP":
        with suppress(ValueError):  # OpenSSL writes those of IPv6 in a way of its own
            text = str(ipaddress.ip_address(text.strip()))
    return f"{kind}:{text}"


def _load_settled(files: TlsFiles) -> Material:
    """Read the files at the start. Wait a while for those that are being replaced."""
    give_up = time.monotonic() + _SETTLE_SECONDS_MAX
    while True:
        try:
            return _load(files)
        except TlsFilesUnsettledError as error:
            if time.monotonic() > give_up:
                raise
            _log.warning("%s; waiting: somebody may be replacing it", error, extra={"event": "tls_unsettled"})
            time.sleep(_SETTLE_LOOK_SECONDS)


def _load(files: TlsFiles) -> Material:
    from gpkvs.server.certificates import load  # noqa: PLC0415 - without TLS, its library need not be loaded

    return load(files)
