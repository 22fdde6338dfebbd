"""Kernels of a user, compiled for the CPU when they are first needed, and kept for the next process."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import re
import shlex
import subprocess
import tempfile
import zlib
from functools import cache
from pathlib import Path

from gpkvs.errors import BackendError
from gpkvs.kernels.gpu_source import HEADERS, with_headers
from gpkvs.media.directory import sync_path
from gpkvs.native import IS_TRACED

CACHE_VARIABLE = "GPKVS_CACHE_DIR"
_FOLDERS = tuple(f"-I{folder}" for folder in (HEADERS["gpm.cuh"].parent, HEADERS["gpm.cuh"].parents[1]))
_CHECKSUM_BYTES = 4
_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fno-strict-aliasing")
_INCLUDED = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_MACHINE_FLAGS = {"x86_64": ("-march=x86-64-v2",), "aarch64": ("-march=armv8-a+crc",)}


def compile_for_host(source: str, name: str) -> ctypes.CDLL:
    """Compile kernels, unless that was done before, and load them.

    Parameters
    ----------
    source
        C++ that includes ``gpm.cuh``.
    name
        What the compiler's messages call it.

    Raises
    ------
    BackendError
        If there is no compiler, with what it says, or if what it made cannot be loaded.
    """
    command = [*_compiler(), *_FLAGS, *_MACHINE_FLAGS.get(platform.machine(), ())]
    if IS_TRACED:
        command.append("-DGPKVS_TRACE")
    version, text = _version(command[0]), with_headers(source, name)
    if set(_INCLUDED.findall(source)) - HEADERS.keys():
        text = _run(text, [*command, "-E"])  # headers of the user's own: what they hold must count, too
    digest = hashlib.sha256("\0".join([text, version, *command]).encode()).hexdigest()
    built = _cache_directory() / f"{digest[:32]}.so"
    if not _is_whole(built):
        _build(text, command, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise BackendError(
            f"compiled kernels cannot be loaded ({error}): name a directory in {CACHE_VARIABLE} whose files may run"
        ) from error


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX") or "c++")


@cache
def _version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BackendError(
            f"kernels for the CPU need a C++ compiler, and {compiler} does not run ({error}): install one "
            "(apt-get install g++), or name it in CXX"
        ) from error


def _cache_directory() -> Path:
    asked = os.environ.get(CACHE_VARIABLE)
    base = Path(asked) if asked else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpkvs"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(base, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise BackendError(
            f"{base}: {error.strerror}; name a directory for compiled kernels in {CACHE_VARIABLE}"
        ) from error
    return base


def _build(text: str, command: list[str], built: Path) -> None:
    """Compile to a name of its own, then rename: another process may build the same."""
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        output = Path(folder) / built.name
        _run(text, [*command, "-o", str(output)])
        with output.open("ab") as file:  # a loader does not look at what follows a library
            file.write(_checksum(output.read_bytes()))
        sync_path(output)
        output.rename(built)


def _is_whole(built: Path) -> bool:
    """Whether a library is there, as it was built: it may have been cut off, and loading it would kill the process."""
    try:
        data = built.read_bytes()
    except FileNotFoundError:
        return False
    return len(data) > _CHECKSUM_BYTES and data[-_CHECKSUM_BYTES:] == _checksum(data[:-_CHECKSUM_BYTES])


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")


def _run(text: str, command: list[str]) -> str:
    """Run the compiler on a text; return what it prints."""
    done = subprocess.run(
        [*command, *_FOLDERS, "-x", "c++", "-"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BackendError(f"the kernels do not compile for the CPU:\n{done.stderr}")
    return done.stdout
