"""What callers give for the settings of a store, checked before a file is touched."""

from __future__ import annotations

import operator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gpkvs.config import Setting, StoreConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import quoted


def require_whole_number(name: str, value: object, least: float = 0) -> None:
    """Raise if a value is no whole number, or a smaller one than `least`.

    Raises
    ------
    InvalidArgumentError
        With the setting's name as its field.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise InvalidArgumentError(f"it must be a whole number, not {_shown(value)}", field=name) from None
    if number < least:
        raise InvalidArgumentError(f"it must be at least {least:g}, not {number}", field=name)


def require_settings(config: StoreConfig) -> None:
    """Raise if a setting of a store has a value that means nothing.

    The command line checks what it is given; Python takes any object.

    Raises
    ------
    InvalidArgumentError
        With the setting's name as its field.
    """
    for name, hint in get_type_hints(StoreConfig, include_extras=True).items():
        kind, *more = get_args(hint) or (hint,)
        settings = [setting for setting in more if isinstance(setting, Setting)]
        if settings:
            _require(name, getattr(config, name), kind, settings[0])


def _require(name: str, value: object, kind: Any, setting: Setting) -> None:
    """Raise if a value is none of its kind: one of some names, or a number."""
    kinds = get_args(kind) or (kind,)
    if get_origin(kind) is Literal:
        if value not in kinds:
            names = ", ".join(map(repr, kinds))
            raise InvalidArgumentError(f"it must be one of {names}, not {_shown(value)}", field=name)
    elif int in kinds and not (value is None and type(None) in kinds):
        require_whole_number(name, value, setting.min or 0)


def _shown(value: object) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)
