"""The wheel on a system that has Python and nothing else: no compiler, none of the libraries that the wheel brings.

``python -m tests.bare_system``. It needs root and Debian's debootstrap. It makes the wheel and, in a folder, a new
system, installs the wheel there, and runs ``gpkvs demo``. It prints what it did as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
_RELEASE = "bookworm"
_PACKAGES = "python3-minimal,python3-venv"
# In a namespace of its own: what is mounted goes with it.
_INSIDE = """
set -e
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp"
exec chroot "$1" /bin/sh -ec '
    cd /tmp
    if command -v cc g++; then echo "the system has a compiler" >&2; exit 1; fi
    python3 -m venv /venv
    /venv/bin/pip install --quiet --no-index --find-links /wheels gpkvs
    /venv/bin/gpkvs --version
    /venv/bin/gpkvs demo
'
"""


def run(*command: str | Path) -> str:
    """Run a command of the host; what it prints goes to the error output if it fails."""
    done = subprocess.run(
        command, check=False, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def main() -> None:
    """Make the wheel and the system, and try."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("it needs root and debootstrap: apt-get install debootstrap")
    began = time.monotonic()
    shutil.rmtree(REPOSITORY / "dist", ignore_errors=True)
    run("make", "wheel")
    (wheel,) = (REPOSITORY / "dist").glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="gpkvs-bare-") as folder:
        root = Path(folder) / "root"
        run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _RELEASE, root)
        run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", root / "wheels", wheel)
        printed = run("unshare", "--mount", "bash", "-c", _INSIDE, "bash", root)
    print(
        json.dumps(
            {
                "wheel": wheel.name,
                "wheel_bytes": wheel.stat().st_size,
                "demo": [line for line in printed.splitlines() if line.startswith(("gpkvs", "│"))],
                "seconds": round(time.monotonic() - began, 1),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
