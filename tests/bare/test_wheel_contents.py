"""The look at a wheel sees what must not be given away: here, what this machine compiled for itself alone."""

from __future__ import annotations

import base64
import hashlib
import platform
import zipfile
from pathlib import Path

import pytest

from gpkvs.native import installed_library
from tests.bare.wheel_contents import BUNDLED, LIBRARIES, faults

INFO = "gpkvs-0.1.0.dist-info"
OTHER = "x86_64" if platform.machine() == "aarch64" else "aarch64"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a wheel of what is installed, with a bill of materials that names one library."""
    files = {f"gpkvs/{name}": installed_library(name).read_bytes() for name in LIBRARIES}
    files[f"{INFO}/licenses/LICENSE"] = b"text"
    files[f"{INFO}/sboms/gpkvs.cdx.json"] = b'{"components": [{"name": "openssl", "version": "1.0.2"}]}'
    rows = [f"{name},{_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{INFO}/RECORD"] = "\n".join([*rows, f"{INFO}/RECORD,,", "gpkvs/lost.py,sha256=x,1"]).encode()
    files["gpkvs/_door.so"] += str(Path(__file__).parents[2]).encode()
    wheel = tmp_path / f"gpkvs-0.1.0-py3-none-manylinux_2_28_{OTHER}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def test_what_a_machine_made_for_itself_is_not_given_away(own: Path) -> None:
    seen = "\n".join(faults(own))
    for name in LIBRARIES:
        assert f"{name}: not for {OTHER}" in seen
    assert "_door.so: it needs libnghttp2.so.14" in seen
    assert "_door.so: it needs libstdc++.so.6" in seen
    assert "_door.so: it needs glibc 2." in seen
    assert "gpkvs/_door.so: it has a path of the machine on which it was made" in seen
    assert "gpkvs/_door.so: not what RECORD says" in seen
    assert "gpkvs/lost.py: in the wheel or in its RECORD, and not in both" in seen
    assert "licenses/NOTICE: missing" in seen
    for name in BUNDLED - {"openssl"}:
        assert f"licenses/{name}/LICENSE.txt: missing" in seen
        assert f"{name} is in the wheel or in the list" in seen
    assert "the door has another OpenSSL than 1.0.2" in seen


def test_a_name_for_newer_systems_is_seen(own: Path) -> None:
    newer = own.rename(own.with_name("gpkvs-0.1.0-py3-none-manylinux_2_36_x86_64.whl"))
    assert list(faults(newer)) == [f"{newer.name}: the name is not that of a wheel for glibc 2.28"]
