"""Programs that some tests use and README's packages do not bring: without one, the test is skipped by name.

``tests/packages.txt`` lists the Debian packages that bring them all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

PACKAGES: Final = {
    "curl": {"curl": "curl"},
    "go": {"golang-go": "go", "golang-google-grpc-dev": "/usr/share/gocode/src/google.golang.org/grpc"},
    "h2load": {"nghttp2-client": "h2load"},
    "openssl": {"openssl": "openssl"},
    "prometheus": {"prometheus": "prometheus"},
    "promtool": {"prometheus": "promtool"},
    "redis-benchmark": {"redis-tools": "redis-benchmark"},
    "redis-cli": {"redis-tools": "redis-cli"},
    "redis-server": {"redis-server": "redis-server"},
    "rsync": {"rsync": "rsync"},
    "tclsh": {"tcl": "tclsh"},
}
"""What tests need for each tool: Debian packages, and the program or the path that shows that one is there."""


def missing(*tools: str) -> str:
    """Say which tools lack what, and how to install it; "" if all are there."""
    packages, lacking = {}, []
    for tool in tools:
        absent = [package for package, sign in PACKAGES[tool].items() if not _is_there(sign)]
        if absent:
            lacking.append(tool)
            packages.update(dict.fromkeys(absent))
    return f"needs {' and '.join(lacking)}: apt-get install {' '.join(packages)}" if lacking else ""


def _is_there(sign: str) -> bool:
    return Path(sign).exists() if "/" in sign else shutil.which(sign) is not None


def needs(*tools: str) -> pytest.MarkDecorator:
    """Return a mark for tests that use tools."""
    reason = missing(*tools)
    return pytest.mark.skipif(bool(reason), reason=reason)


def require(*tools: str) -> None:
    """Skip the test that runs if a tool is not installed."""
    if reason := missing(*tools):
        pytest.skip(reason)
