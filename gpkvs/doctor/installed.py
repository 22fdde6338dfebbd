"""How gpkvs was installed, and so how it is installed again."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError
from shlex import quote
from urllib.parse import unquote, urlsplit


def install_again() -> str:
    """Return the command that installs gpkvs as it was installed, by what pip has noted beside it."""
    try:
        noted = json.loads(Distribution.from_name("gpkvs").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return "make install (or pip install .), in the folder of the source"
    if not noted:
        return "pip install --force-reinstall --no-deps gpkvs"
    where = quote(unquote(urlsplit(noted["url"]).path))
    if noted.get("dir_info", {}).get("editable"):
        return f"make install, in {where}"
    return f"pip install --force-reinstall --no-deps {where}"
