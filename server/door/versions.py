"""What the native door is made of, without a door."""

from __future__ import annotations

import ctypes

from gpkvs.errors import BackendError
from gpkvs.native import installed_library

NAME = "_door.so"


def versions() -> str:
    """Return the libraries that the door has, with their versions, or why it has none; "" if it is not built."""
    try:
        function = ctypes.CDLL(str(installed_library(NAME))).gpkvs_door_versions
    except BackendError:
        return ""
    except OSError as error:
        return f"cannot be loaded: {error}"
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()
