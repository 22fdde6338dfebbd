"""Whether a request keeps the limits, and the words of the refusal: for the store, the server and the client.

`gpkvs.config.Limits` has the numbers.
"""

from __future__ import annotations

from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import counted

_NUMBER_BYTES = 8


def check_key_bytes(size: int, limits: Limits) -> None:
    """Check the length of one key.

    Raises
    ------
    InvalidArgumentError
        If it is out of the limits.
    """
    if not limits.key_bytes_min <= size <= limits.key_bytes_max:
        raise wrong_bytes("key", size, limits.key_bytes_min, limits.key_bytes_max, field="key")


def check_value_bytes(size: int, limits: Limits) -> None:
    """Check the length of one value; raises as `check_key_bytes`."""
    if not limits.value_bytes_min <= size <= limits.value_bytes_max:
        raise wrong_bytes("value", size, limits.value_bytes_min, limits.value_bytes_max, field="value")


def wrong_bytes(
    name: str, size: int, bytes_min: int, bytes_max: int, *, field: str, index: int | None = None
) -> InvalidArgumentError:
    """Return the refusal of a key or value (`name`) of a wrong length: it names the limit."""
    if bytes_min == bytes_max:
        allowed = f"this table takes {bytes_max:,} only: "
        if bytes_max == _NUMBER_BYTES:
            allowed += (
                "its layout is u64, so its keys and values are whole numbers from 0 to 2**64 - 1 (ints in Python, 8 "
                "bytes little-endian on the wire), or it is one of rows, as float32[128]. "
            )
        else:
            allowed += "its layout is one of rows, as float32[128]. "
        allowed += "Bytes take a table of the layout bytes: create_table(name), or gpkvs table create NAME"
    else:
        allowed = f"allowed are {bytes_min} to {bytes_max:,} ({name}_bytes_max)"
    return InvalidArgumentError(f"a {name} of {counted(size, 'byte')}, {allowed}", field=field, index=index)


def check_request_ops(operations: int, limits: Limits, advice: str = "split it") -> None:
    """Check the number of operations of one request.

    Raises
    ------
    InvalidArgumentError
        If it is over the limit.
    """
    if operations > limits.request_ops_max:
        raise InvalidArgumentError(
            f"{operations:,} operations in one request, the limit is {limits.request_ops_max:,} (request_ops_max): "
            f"{advice}",
            field="ops",
        )
