"""The wheel on systems that have Python and nothing else: no compiler, none of the libraries that the wheel brings.

``python -m tests.bare.wheel``. It makes the wheel of this machine, installs it in bare systems with several versions of
Python, writes one key to a new store, and runs ``gpkvs demo``. It prints the seconds of each as JSON.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path

from tests.bare.system import REPOSITORY, System, folder, run
from tests.bare.wheel_contents import faults

# By their Python: 3.11, 3.13, and the newest that Debian has.
RELEASES = ("bookworm", "trixie", "forky")
_INSIDE = """
    if command -v cc c++ gcc g++; then echo the system has a compiler >&2; exit 1; fi
    now() { date +%s%3N; }
    began=$(now)
    python3 -m venv /venv
    /venv/bin/pip install --quiet --no-index --find-links /wheels gpkvs
    installed=$(now)
    /venv/bin/gpkvs serve --data /root/store &
    until /venv/bin/gpkvs set greeting hello 2>/dev/null; do sleep 0.1; done
    written=$(now)
    kill -9 $!
    wait $! || true
    /venv/bin/gpkvs serve --data /root/store &
    until /venv/bin/gpkvs get greeting 2>/dev/null | grep -x hello; do sleep 0.1; done
    kill $!
    wait $!
    /venv/bin/gpkvs --version
    demo=$(now)
    /venv/bin/gpkvs demo
    ended=$(now)
    echo "python $(python3 -c "import platform; print(platform.python_version())")"
    echo "milliseconds $((installed - began)) $((written - began)) $((ended - demo))"
"""


def tried(wheel: Path, root: Path, release: str) -> dict[str, object]:
    """Make a system, install the wheel there, and return what that took."""
    system = System(root, ["--no-install-recommends", "python3-minimal", "python3-venv"], release)
    version = system.run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    wanted = ("--only-binary", ":all:", "--python-version", version, "--dest", root / "wheels", wheel)
    run(sys.executable, "-m", "pip", "download", "--quiet", *platforms(), *wanted)
    printed = system.run(_INSIDE)
    seen = re.search(r"^milliseconds (\d+) (\d+) (\d+)$", printed, re.MULTILINE)
    python = re.search(r"^python (\S+)$", printed, re.MULTILINE)
    assert seen
    assert python
    install, first_set, demo = (round(int(number) / 1000, 1) for number in seen.groups())
    return {"python": python[1], "install_seconds": install, "first_set_seconds": first_set, "demo_seconds": demo}


def platforms() -> list[str]:
    """Return options of pip for packages that run with the glibc of the wheel."""
    names = (f"{name}_{platform.machine()}" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"))
    return [word for name in names for word in ("--platform", name)]


def main() -> None:
    """Make the wheel and the systems, and try."""
    with folder(__doc__) as root:
        machine = platform.machine()
        run("make", "wheel", f"PLATFORMS={machine}")
        (wheel,) = (REPOSITORY / "dist").glob(f"*_{machine}.whl")
        if wrong := list(faults(wheel)):
            sys.exit("\n".join(wrong))
        results = {release: tried(wheel, root.with_name(release), release) for release in RELEASES}
    print(json.dumps({"wheel": wheel.name, "wheel_bytes": wheel.stat().st_size, "systems": results}, indent=2))


if __name__ == "__main__":
    main()
