"""A bare Debian in a folder, and commands inside it. It needs root and Debian's debootstrap.

The new system reaches package mirrors and indexes as the host does: it gets the host's settings of apt and pip, its
certificates, and those variables of its environment that name indexes, proxies and certificates.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
RELEASE = "bookworm"
_SETTINGS = ("apt/apt.conf.d", "apt/auth.conf.d", "pip.conf", "resolv.conf", "hosts", "ssl/certs")
_VARIABLE = re.compile(r"(pip|npm_config)_.*|.*_(proxy|cert|certs|cert_file|cert_dir|ca_bundle|cainfo)", re.IGNORECASE)
_HOME = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
}
# In namespaces of its own: what is mounted and who still runs goes with it. The root is a mount point, so that who is
# inside can have mounts of his own.
_ENTER = """
set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
mount --bind /dev/pts "$1/dev/pts"
mount -t tmpfs tmpfs "$1/dev/shm"
exec chroot "$1" /bin/sh -ec "cd /root; $2"
"""


def run(*command: str | Path) -> str:
    """Run a command of the host and return what it prints; the end of that goes to the error output if it fails."""
    done = subprocess.run(
        command, check=False, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


class System:
    """A system in a folder.

    Parameters
    ----------
    root
        The folder. It should be on a disk: it takes gigabytes.
    packages
        The packages that it has beside those that every Debian has.
    release
        The release of Debian.
    """

    def __init__(self, root: Path, packages: list[str], release: str = RELEASE) -> None:
        self.root = root
        # Debian 12's debootstrap does not know what came later, and needs nothing but the name of it.
        script = Path("/usr/share/debootstrap/scripts", release)
        scripts = [] if script.exists() else [script.with_name("sid")]
        run("debootstrap", "--variant=minbase", release, root, *(_mirror() or ["" for _ in scripts]), *scripts)
        self._give_settings()
        # As a user types it: with the packages that it recommends.
        self.run(f"apt-get update -q; apt-get install -q -y {' '.join(packages)}")
        self._give_settings()  # a package may have made certificates anew

    def _give_settings(self) -> None:
        """Replace settings by the host's; links inside may name files of the host and are not written through."""
        for name in _SETTINGS:
            path, inside = Path("/etc") / name, self.root / "etc" / name
            if path.is_dir():
                shutil.rmtree(inside, ignore_errors=True)
                shutil.copytree(path, inside, ignore_dangling_symlinks=True)
            elif path.is_file():
                inside.unlink(missing_ok=True)
                shutil.copyfile(path, inside)

    def run(self, script: str) -> str:
        """Run a script of the shell inside and return what it prints, which also goes to the error output.

        Raises
        ------
        SystemExit
            If the script fails.
        """
        settings = {name: value for name, value in os.environ.items() if _VARIABLE.fullmatch(name)} | _HOME
        lines = []
        with subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", _ENTER, "bash", self.root, script],
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout
            for line in process.stdout:
                print(line, end="", file=sys.stderr, flush=True)
                lines.append(line)
        if process.returncode:
            sys.exit(f"{script}: exit status {process.returncode}")
        return "".join(lines)


def _mirror() -> list[str]:
    """Return the mirror that apt uses here, if this machine has RELEASE; none leaves it to debootstrap."""
    if not shutil.which("apt-get"):
        return []
    command = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {RELEASE}")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()[:1]


@contextmanager
def folder(description: str | None) -> Iterator[Path]:
    """Yield a new folder on a disk for a system, or end with what is missing for one; the folder goes at the end."""
    argparse.ArgumentParser(description=description).parse_args()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("it needs root and debootstrap: apt-get install debootstrap")
    with tempfile.TemporaryDirectory(prefix="gpkvs-bare-", dir="/var/tmp") as path:
        yield Path(path) / "root"
