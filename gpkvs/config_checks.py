"""What is wrong with the settings of a store, found before a file is touched.

`gpkvs.open`, `gpkvs serve` and `gpkvs config show` ask here. Each check yields errors, so that whoever is wrong in
several places hears of all of them at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gpkvs.columns.whole_number import whole_number
from gpkvs.config import SIZE_BOUNDS, Setting, Sizes, StoreConfig
from gpkvs.errors import BackendError, GpkvsError, InvalidArgumentError
from gpkvs.text import shown

BACKEND_VARIABLE = "GPKVS_BACKEND"


def require_settings(config: StoreConfig) -> None:
    """Raise if settings of a store mean nothing.

    The command line checks what it is given; Python takes any object.

    Raises
    ------
    InvalidArgumentError
        With the setting's name as its field; if several are wrong, it names all of them.
    BackendError
        If GPUs are asked for, and another backend.
    """
    raise_faults(store_faults(config))


def raise_faults(faults: Iterable[GpkvsError]) -> None:
    """Raise what is wrong, if anything is: one error that says all of it."""
    found = list(faults)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InvalidArgumentError("\n  ".join([f"{len(found)} settings are wrong:", *map(str, found)]))


def faults_of(check: Any, *arguments: Any) -> Iterator[GpkvsError]:
    """Return the error that a check raises, if it raises one."""
    try:
        check(*arguments)
    except GpkvsError as error:
        yield error


def store_faults(config: StoreConfig) -> Iterator[GpkvsError]:
    """Return what is wrong with the settings of a store."""
    faults = list(value_faults(config))
    yield from faults
    wrong = {fault.field for fault in faults}
    if not wrong & SIZE_BOUNDS.keys():
        yield from heap_faults(config.sizes)
    if "backend" not in wrong:
        yield from gpus_faults(backend_named(config.backend), config.gpus)
    if config.commit == "journal" and config.durability == "none":
        yield no_journal()


def value_faults(config: Any, *, by_option: bool = False) -> Iterator[InvalidArgumentError]:
    """Return what is wrong with single settings of a config: each is one of some names, or a number within bounds.

    Parameters
    ----------
    config
        Settings of a store or of a server.
    by_option
        Name a setting as the command line does, not as the field of the config.
    """
    for name, hint in _hints_of(config.__class__).items():
        value = getattr(config, name)
        if is_dataclass(hint):
            yield from value_faults(value, by_option=by_option)
            continue
        kind, *more = get_args(hint) or (hint,)
        for setting in more:
            if isinstance(setting, Setting):
                option = setting.name if by_option and setting.name else name
                yield from _value_faults(option, value, kind, setting)


@cache  # reading them anew would take a sixth of the time to open a small store
def _hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _value_faults(name: str, value: object, kind: Any, setting: Setting) -> Iterator[InvalidArgumentError]:
    kinds = get_args(kind) or (kind,)
    if get_origin(kind) is Literal:
        if value not in kinds:
            names = ", ".join(map(repr, kinds))
            yield InvalidArgumentError(f"it must be one of {names}, not {shown(value)}", field=name)
    elif int in kinds and not (value is None and type(None) in kinds):
        least, most = SIZE_BOUNDS.get(name, (setting.min or 0, setting.max or math.inf))
        try:
            number = whole_number(name, value) if setting.is_size else whole_number(name, value, least, most)
        except InvalidArgumentError as error:
            yield error
        else:
            if setting.is_size:
                yield from size_faults(name, number, least, most)


def size_faults(name: str, size: int, least: float, most: float) -> Iterator[InvalidArgumentError]:
    """Return what is wrong with a number of bytes."""
    if not least <= size <= most:
        allowed = f"allowed are {least:,} to {most:,}" if most < math.inf else f"at least {least:,} are needed"
        yield InvalidArgumentError(f"{size:,} bytes, {allowed}", field=name)


def heap_faults(sizes: Sizes) -> Iterator[InvalidArgumentError]:
    """Return what is wrong with the two sizes of a heap; one that is 0 was not given."""
    if 0 < sizes.heap_bytes_max < sizes.heap_bytes:
        yield InvalidArgumentError(
            f"{sizes.heap_bytes:,} bytes are more than heap_bytes_max allows, {sizes.heap_bytes_max:,}",
            field="heap_bytes",
        )


def gpus_faults(backend: str, gpus: str) -> Iterator[BackendError]:
    """Return what is wrong with the choice of GPUs for a backend."""
    if gpus != "auto" and backend != "cuda":
        yield BackendError(
            f"gpus={gpus} is of the backend cuda, and this one is {backend}: add --backend cuda, or leave out --gpus"
        )


def backend_named(name: str) -> str:
    """Return the backend that a setting names: ``auto`` is what the environment says, else the CPU."""
    return os.environ.get(BACKEND_VARIABLE, "cpu") if name == "auto" else name


def no_journal() -> InvalidArgumentError:
    """Return the error for a new store with a journal where nothing is to be durable."""
    return InvalidArgumentError("a journal cannot be had with durability=none: choose undo", field="commit")


def journal_stays() -> InvalidArgumentError:
    """Return the same for a store that has a journal."""
    return InvalidArgumentError("the store has a journal, which is never off: leave it out", field="durability")
