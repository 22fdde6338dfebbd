"""Structs of native code whose fields are words: Python fills them by name, and native code is given their address."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from gpkvs.backends.fields import fields_of


def places_of(fields: bytes) -> dict[str, int]:
    """Return which word of a struct each field is, of the list that the library exports."""
    return {field.name: at for at, field in enumerate(fields_of(fields))}


class Words:
    """One struct, zeroed but for what is given.

    Parameters
    ----------
    places
        Of its fields (`places_of`).
    **given
        Fields: numbers and addresses.

    Attributes
    ----------
    address
        Of the struct.
    """

    def __init__(self, places: Mapping[str, int], **given: int) -> None:
        self._places = places
        self._words = (ctypes.c_uint64 * len(places))()
        self.address = ctypes.addressof(self._words)
        self.set(**given)

    def set(self, **given: int) -> None:
        """Set fields."""
        for name, word in given.items():
            self._words[self._places[name]] = word

    def get(self, name: str) -> int:
        """Return a field."""
        return self._words[self._places[name]]
