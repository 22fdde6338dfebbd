"""Make docs/demo.svg from a real run: FORCE_COLOR=1 COLUMNS=100 gpkvs demo | python docs/record_demo.py."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

# A spinner redraws its line, moves the cursor and hides it: what remains on the screen is the last of it.
_CONTROL = re.compile(r"\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]")

_SPINNER = re.compile(r"\x1b\[32m[\u2800-\u28ff]\x1b\[0m")


def main() -> None:
    """Read the output of a run from standard input and write the picture."""
    lines = [_CONTROL.sub("", line.rsplit("\r", 1)[-1]) for line in sys.stdin.read().split("\n")]
    shown = [line for line in lines if not _SPINNER.match(line)]
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print("[bold green]$[/] make demo\n")
    console.print(Text.from_ansi("\n".join(shown).strip("\n")))
    Path(__file__).with_name("demo.svg").write_text(console.export_svg(title="make demo"))


if __name__ == "__main__":
    main()
