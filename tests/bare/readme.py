"""The two commands of README on a system that has what README names, and nothing else.

``python -m tests.bare.readme``. In a bare system, on a fresh clone of the last commit, it runs ``make demo`` and
``make test``. It prints the seconds of each and the tests that were skipped as JSON.
"""

from __future__ import annotations

import json
import re
import time

from tests.bare.system import REPOSITORY, System, folder, run

_PACKAGES = re.compile(r"`apt-get install ([^`$]+)`")
COMMANDS = ("make demo", "make test")


def packages() -> list[str]:
    """Return the packages that README names for its two commands."""
    found = _PACKAGES.search((REPOSITORY / "README.md").read_text())
    assert found, "README.md names no packages"
    return found.group(1).split()


def main() -> None:
    """Make the system and the clone, and try."""
    with folder(__doc__) as root:
        system = System(root, packages())
        run("git", "clone", "--quiet", "--no-hardlinks", REPOSITORY, root / "root" / "gpkvs")
        seconds, printed = {}, ""
        for command in COMMANDS:
            began = time.monotonic()
            printed = system.run(f"cd gpkvs; {command}")
            seconds[command] = round(time.monotonic() - began, 1)
    skipped = sorted({line for line in printed.splitlines() if line.startswith("SKIPPED")})
    print(json.dumps({"packages": packages(), "seconds": seconds, "skipped": skipped}, indent=2))


if __name__ == "__main__":
    main()
