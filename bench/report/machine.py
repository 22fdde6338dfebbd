"""Describes what was measured, and where: the build, the machine, the file system."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

import gpkvs
from gpkvs.info import package_version
from gpkvs.process.mounts import mount_of


def describe_run(directory: Path) -> dict[str, object]:
    """Return date, build and machine of a benchmark whose stores lie in `directory`."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "version": package_version(),
        "commit": commit(),
        "machine": {
            "processor": processor(),
            "processors": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": kernel_version(platform.release()),
            "python": platform.python_version(),
            "file_system": file_system(directory),
        },
    }


def kernel_version(release: str) -> str:
    """Return the version of a kernel without the rest of its release, which names a build."""
    found = re.match(r"\d+(\.\d+)*", release)
    return found[0] if found else "unknown"


def processor() -> str:
    """Return the model of the processor, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds a directory."""
    mount = mount_of(directory)
    return mount.kind if mount else "unknown"


def commit() -> str:
    """Return the commit of the sources that run, with ``+`` if they were changed; "" without a repository."""
    folder = Path(gpkvs.__file__).parent
    head = _git(folder, "rev-parse", "HEAD")
    return head + "+" if head and _git(folder, "status", "--porcelain", "--untracked-files=no") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
