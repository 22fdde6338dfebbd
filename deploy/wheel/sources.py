"""The sources of the libraries that a wheel brings: Debian's, with Debian's security fixes.

apt checks them by Debian's signatures. It has its own lists here, so the machine's settings stay as they are, and no
root is needed.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

from deploy.wheel.commands import WORK, run, say

# A release that gets security fixes for as long as this is one; its OpenSSL has post-quantum key exchange.
RELEASE = "trixie"
_FOLDER = WORK / "sources"


@dataclass(frozen=True)
class Source:
    """A source package, unpacked, with Debian's patches applied."""

    name: str
    version: str  # Debian's
    folder: Path
    hashes: dict[str, str]  # SHA-256 by file

    @property
    def upstream_version(self) -> str:
        """The version that the authors gave it."""
        return self.version.rpartition("-")[0]


def fetch(name: str) -> Source:
    """Return a source package; it is fetched unless an earlier run did it."""
    folder = _FOLDER / name
    if not list(folder.glob("*.dsc")):
        folder.mkdir(parents=True, exist_ok=True)
        _fetch_newest(name, folder)
    (description,) = folder.glob("*.dsc")
    text = description.read_text()
    version = re.search(r"^Version: (?:\d+:)?(\S+)$", text, re.MULTILINE)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    assert version
    hashes = {file: digest for digest, file in re.findall(r"^ ([0-9a-f]{64}) \d+ (\S+)$", text, re.MULTILINE)}
    return Source(name, version[1], unpacked, hashes)


def _fetch_newest(name: str, folder: Path) -> None:
    apt = _apt()
    found = run("apt-cache", *apt, "showsrc", "--only-source", name)
    versions = sorted(set(re.findall(r"^Version: (\S+)$", found, re.MULTILINE)), key=cmp_to_key(_compare), reverse=True)
    for version in versions:
        # A mirror may list what it has no more, or not yet.
        command = ["apt-get", *apt, "source", "--quiet", "--quiet", f"{name}={version}"]
        if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0:
            say(f"{name} {version}: fetched")
            return
        say(f"{name} {version}: the mirror lists it and does not have it, so an older one is tried")
    raise SystemExit(f"{name}: no version of {RELEASE} could be fetched ({', '.join(versions) or 'none is listed'})")


def _compare(one: str, other: str) -> int:
    return 1 if subprocess.run(["dpkg", "--compare-versions", one, "gt", other], check=False).returncode == 0 else -1


def _apt() -> list[str]:
    """Return options of apt for lists that name the sources of RELEASE, on the mirrors that this machine uses."""
    folder = _FOLDER / "apt"
    options = [f"Dir::State::lists={folder}/lists", f"Dir::Cache={folder}/cache"]
    options += [f"Dir::Etc::sourcelist={folder}/sources.list", "Dir::Etc::sourceparts=-"]
    apt = [word for option in options for word in ("-o", option)]
    if not (folder / "sources.list").exists():
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "sources.list").write_text(_lines())
        run("apt-get", *apt, "update", "--quiet")
    return apt


def _lines() -> str:
    # Of this machine's own release and of its security fixes, wherever they come from.
    command = ("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages")
    release = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    own = release[1] if release else ""
    lines = set()
    for line in run(*command).splitlines():
        mirror, _, suite = line.partition(" ")
        if suite in (own, f"{own}-security"):
            lines.add(f"deb-src {mirror} {suite.replace(own, RELEASE)} main\n")
    if len(lines) < 2:
        raise SystemExit("wheels are made on a Debian whose apt knows its release and its security fixes")
    return "".join(sorted(lines))
