"""What the native door is made of, without a door."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from gpkvs.errors import BackendError
from gpkvs.native import installed_library

NAME = "_door.so"
PACKAGES: Final = (
    "Debian: apt-get install libnghttp2-dev libssl-dev; Fedora: dnf install libnghttp2-devel openssl-devel; "
    "Homebrew: brew install libnghttp2 openssl@3"
)
"""What brings the headers and libraries that the door is built with (CMakeLists.txt says the same)."""

# Another build of the same door, for tests: with sanitizers (Makefile).
_VARIABLE = "GPKVS_DOOR_LIBRARY"


def library_path() -> str:
    """Return the file of the door's library.

    Raises
    ------
    BackendError
        If it is missing.
    """
    given = os.environ.get(_VARIABLE)
    if given and not Path(given).exists():
        raise BackendError(f"{given} is missing ({_VARIABLE})")
    return given or str(installed_library(NAME))


def versions() -> str:
    """Return the libraries that the door has, with their versions, or why it has none; "" if it is not built."""
    try:
        function = ctypes.CDLL(library_path()).gpkvs_door_versions
    except BackendError:
        return ""
    except OSError as error:
        return f"cannot be loaded: {error}"
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()
