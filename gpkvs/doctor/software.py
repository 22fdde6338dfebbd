"""What gpkvs itself is made of here."""

from __future__ import annotations

import platform
import ssl
import sys
from collections.abc import Iterator

from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.doctor.kernels import kernels_fact
from gpkvs.info import package_version
from gpkvs.server.door.versions import PACKAGES, versions

_VERSION = "Whoever reports a problem names it."
_PYTHON = "gpkvs is tested with Python 3.11 to 3.13."
_DOOR = "It serves clients, over gRPC and the Redis protocol; the embedded store does without."
_TLS = "The native door has TLS by its own OpenSSL; Python's serves the port of metrics."


def software_facts() -> Iterator[Fact]:
    """Look at gpkvs, its kernels, its native door, TLS and Python."""
    yield Fact("gpkvs", Verdict.FINE, package_version(), _VERSION, figures={"version": package_version()})
    yield kernels_fact()
    yield door_fact(versions())
    yield Fact("TLS", Verdict.FINE, f"Python has {ssl.OPENSSL_VERSION}", _TLS, figures={"openssl": ssl.OPENSSL_VERSION})
    yield python_fact(sys.version_info[:2], platform.python_version())


def door_fact(libraries: str) -> Fact:
    """Judge the native door; `libraries` is what it is made of, "" if it is not built."""
    figures = {"native_door": libraries or None}
    if libraries and not libraries.startswith("cannot"):
        return Fact("native door", Verdict.FINE, f"built, with {libraries}", _DOOR, figures=figures)
    value = libraries or "not built"
    mend = f"{PACKAGES}; then make install (or pip install .) again"
    return Fact("native door", Verdict.WRONG, f"{value}: a server does not start", _DOOR, mend, figures)


def python_fact(numbers: tuple[int, ...], full: str) -> Fact:
    """Judge the version of Python."""
    figures = {"python": full}
    if numbers > (3, 13):
        value = f"{full}, newer than what gpkvs was tested with"
        return Fact("Python", Verdict.BETTER, value, _PYTHON, "make install PYTHON=python3.13", figures)
    return Fact("Python", Verdict.FINE, full, _PYTHON, figures=figures)
