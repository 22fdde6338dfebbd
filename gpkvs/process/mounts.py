"""Which mount holds a directory, and how it was mounted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")  # a blank, a tab, the end of a line or a backslash in a path


@dataclass(frozen=True)
class Mount:
    """One line of ``/proc/self/mountinfo``."""

    point: Path
    kind: str  # the type of the file system
    options: tuple[str, ...]  # of the mount, then of the file system


def mount_of(directory: Path, root: Path = Path("/")) -> Mount | None:
    """Return the mount that holds a directory; None if the system does not say.

    Parameters
    ----------
    directory
        Need not be there.
    root
        Below which ``proc`` lies.
    """
    try:
        text = (root / "proc/self/mountinfo").read_text()
    except OSError:
        return None
    at = directory.resolve()
    found = None
    for line in text.splitlines():
        mount = parse_mount(line)
        # Of mounts one over the other, the last one counts.
        if at.is_relative_to(mount.point) and (not found or len(mount.point.parts) >= len(found.point.parts)):
            found = mount
    return found


def parse_mount(line: str) -> Mount:
    """Return what a line of ``mountinfo`` says (proc(5)): fields of the mount, a dash, fields of the file system."""
    of_mount, _, of_system = line.partition(" - ")
    _, _, _, _, point, options, *_ = of_mount.split(" ")
    kind, _, more = of_system.split(" ", 2)
    plain = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), point)
    return Mount(Path(plain), kind, tuple(dict.fromkeys([*options.split(","), *more.split(",")])))
