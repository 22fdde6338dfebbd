"""The wheel on a system that has Python and nothing else: no compiler, none of the libraries that the wheel brings.

``python -m tests.bare.wheel``. It makes the wheel, installs it in a bare system, and runs ``gpkvs demo``. It prints
what it did as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import time

from tests.bare.system import REPOSITORY, System, folder, run

_INSIDE = """
    if command -v cc g++; then echo the system has a compiler >&2; exit 1; fi
    python3 -m venv /venv
    /venv/bin/pip install --quiet --no-index --find-links /wheels gpkvs
    /venv/bin/gpkvs --version
    /venv/bin/gpkvs demo
"""


def main() -> None:
    """Make the wheel and the system, and try."""
    with folder(__doc__) as root:
        began = time.monotonic()
        shutil.rmtree(REPOSITORY / "dist", ignore_errors=True)
        run("make", "wheel")
        (wheel,) = (REPOSITORY / "dist").glob("*.whl")
        system = System(root, ["--no-install-recommends", "python3-minimal", "python3-venv"])
        run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", root / "wheels", wheel)
        printed = system.run(_INSIDE)
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
