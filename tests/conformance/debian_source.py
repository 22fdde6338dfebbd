"""The source of a Debian package: apt fetches and verifies it, without root and without a change to its own files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

CACHE = Path(__file__).resolve().parents[2] / "build" / "conformance"
APT = Path("/etc/apt")


def source_archive(package: str, version: str) -> Path:
    """Return the archive of a package's original source; apt fetches it if it is not there.

    Raises
    ------
    RuntimeError
        If apt cannot fetch it, or has another version.
    """
    archive = CACHE / f"{package}_{version}.orig.tar.gz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as name:
            fetched = _fetch(package, Path(name))
            if fetched.name != archive.name:
                raise RuntimeError(f"apt has {fetched.name} for this machine, not {archive.name}")
            fetched.rename(archive)
    return archive


def _fetch(package: str, folder: Path) -> Path:
    """Fetch the archive that apt has, with apt's lists and caches in the same folder."""
    sources, lists, cache = (folder / name for name in ("sources", "lists", "cache"))
    for path in (sources, lists / "partial", cache / "archives" / "partial"):
        path.mkdir(parents=True)
    _write_sources(sources)
    options = [
        *("-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={sources}"),
        *("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User="),
    ]
    _apt_get(folder, *options, "update")
    _apt_get(folder, *options, "source", "--download-only", "--tar-only", package)
    [archive] = folder.glob(f"{package}_*.orig.tar.*")
    return archive


def _write_sources(folder: Path) -> None:
    """Name the places where the machine's packages are from as places of source packages."""
    for path in (APT / "sources.list", *(APT / "sources.list.d").glob("*.list")):
        if path.exists():
            (folder / path.name).write_text(re.sub(r"(?m)^deb\s", "deb-src ", path.read_text()))
    for path in (APT / "sources.list.d").glob("*.sources"):
        (folder / path.name).write_text(re.sub(r"(?m)^Types:.*", "Types: deb-src", path.read_text()))


def _apt_get(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["apt-get", "-q", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"apt-get failed:\n{done.stdout}{done.stderr}")
