"""What a wheel that is given away must have inside, and must not (docs/packaging.md).

``python -m tests.bare.wheel_contents WHEEL...`` prints what is wrong with wheels, and ends with 1 if anything is.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
NAME = re.compile(r"gpkvs-(?P<version>[^-]+)-py3-none-manylinux_2_28_(?P<machine>x86_64|aarch64)\.whl")
BYTES_MAX = 10_000_000
GLIBC_MAX = (2, 28)
LIBRARIES = ("_kernels.so", "_kernels_trace.so", "_disk_trace.so", "_door.so")
# What every Linux with glibc has.
OF_SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-[a-z0-9-]+\.so\.\d")
BUNDLED = {"openssl", "nghttp2", "libc++", "libc++abi", "libunwind", "zig-compiler-rt"}
MACHINES = {"x86_64": "X86-64", "aarch64": "AArch64"}


def faults(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel."""
    named = NAME.fullmatch(wheel.name)
    if not named:
        yield f"{wheel.name}: the name is not that of a wheel for glibc 2.28"
        return
    if wheel.stat().st_size > BYTES_MAX:
        yield f"{wheel.stat().st_size:,} bytes, more than {BYTES_MAX:,}"
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
        archive.extractall(folder)
        info = f"gpkvs-{named['version']}.dist-info"
        yield from _of_record(files, info)
        yield from _of_notices(files, info)
        for name, data in files.items():
            if str(REPOSITORY).encode() in data or b"/build/wheel/" in data:
                yield f"{name}: it has a path of the machine on which it was made"
        for name in LIBRARIES:
            if f"gpkvs/{name}" not in files:
                yield f"{name}: missing"
            else:
                yield from _of_library(Path(folder, "gpkvs", name), named["machine"])


def _of_record(files: dict[str, bytes], info: str) -> Iterator[str]:
    recorded = {row[0]: row[1] for row in csv.reader(files[f"{info}/RECORD"].decode().splitlines())}
    for name in sorted(files.keys() ^ recorded.keys()):
        yield f"{name}: in the wheel or in its RECORD, and not in both"
    for name, digest in recorded.items():
        found = base64.urlsafe_b64encode(hashlib.sha256(files.get(name, b"")).digest()).decode().rstrip("=")
        if digest and digest != f"sha256={found}":
            yield f"{name}: not what RECORD says"


def _of_notices(files: dict[str, bytes], info: str) -> Iterator[str]:
    for name in ("LICENSE", "NOTICE", *(f"{name}/LICENSE.txt" for name in sorted(BUNDLED))):
        if not files.get(f"{info}/licenses/{name}"):
            yield f"licenses/{name}: missing"
    sbom = files.get(f"{info}/sboms/gpkvs.cdx.json")
    if not sbom:
        yield "sboms/gpkvs.cdx.json: missing"
        return
    components = {one["name"]: one for one in json.loads(sbom)["components"]}
    for name in sorted(BUNDLED ^ components.keys()):
        yield f"sboms/gpkvs.cdx.json: {name} is in the wheel or in the list, and not in both"
    said = components.get("openssl", {}).get("version", "")
    if f"OpenSSL {said} ".encode() not in files.get("gpkvs/_door.so", b""):
        yield f"sboms/gpkvs.cdx.json: the door has another OpenSSL than {said}"


def _of_library(path: Path, machine: str) -> Iterator[str]:
    told = _readelf(path, "--file-header")
    if MACHINES[machine] not in told:
        yield f"{path.name}: not for {machine}"
    dynamic = _readelf(path, "--dynamic")
    for name in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic):
        if not OF_SYSTEM.fullmatch(name):
            yield f"{path.name}: it needs {name}"
    if "RPATH" in dynamic or "RUNPATH" in dynamic:
        yield f"{path.name}: it looks for libraries in folders of its own"
    for version in sorted(set(re.findall(r"GLIBC_([\d.]+)", _readelf(path, "--version-info")))):
        if tuple(map(int, version.split("."))) > GLIBC_MAX:
            yield f"{path.name}: it needs glibc {version}"


def _readelf(path: Path, option: str) -> str:
    command = ["readelf", "--wide", option, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Look at wheels."""
    found = [f"{wheel}: {fault}" for wheel in sys.argv[1:] for fault in faults(Path(wheel))]
    print("\n".join(found) if found else f"{len(sys.argv) - 1} wheels: nothing is wrong")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
