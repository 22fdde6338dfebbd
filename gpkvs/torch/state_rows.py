"""A state of PyTorch as rows of a table: its bytes, cut into rows under keys from `STATE_KEY` on.

The bytes are: `_MAGIC`, how many they are, and how long the JSON is (8 bytes each, little-endian), the JSON, and the
bytes of each tensor, one after the other. The last row ends with zeros. A state that is shorter than the one before
leaves rows behind it, which no one reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from gpkvs.batch import U8, U64
from gpkvs.columns.row_layout import RowLayout
from gpkvs.errors import InvalidArgumentError
from gpkvs.rows import Rows
from gpkvs.torch.packed_state import bytes_of, packed, unpacked

STATE_KEY: Final = 1 << 63
"""The first key of a state: ids, which are int64 in PyTorch, are below."""
_MAGIC: Final = b"gpkvsST1"
_HEAD_BYTES: Final = len(_MAGIC) + 16


def rows_of_state(state: Mapping[Any, Any], layout: RowLayout) -> tuple[U64, NDArray[Any]]:
    """Return the keys and rows of a state.

    Raises
    ------
    InvalidArgumentError
        If it holds what is no tensor, number, text, list, tuple or dictionary.
    """
    text, tensors = packed(state)
    parts = [text, *(bytes_of(tensor).cpu().numpy() for tensor in tensors)]
    length = _HEAD_BYTES + sum(map(len, parts))
    count = _count_of(length, layout)
    data: U8 = np.zeros(count * layout.row_bytes, np.uint8)
    head = _MAGIC + length.to_bytes(8, "little") + len(text).to_bytes(8, "little")
    end = 0
    for part in (head, *parts):
        begin, end = end, end + len(part)
        data[begin:end] = np.frombuffer(part, np.uint8)
    return _keys(count), layout.array_of(data)


def read_state(rows: Rows) -> Any:
    """Return the state of a table, as of one moment; None: it has none. Tensors are on the host.

    Raises
    ------
    InvalidArgumentError
        If what lies there is no state.
    """
    count, needed, data = 0, _count_of(_HEAD_BYTES, rows.layout), b""
    while count < needed:  # again, if there are more: all rows come from one read
        count = needed
        held, found = rows.get(_keys(count))
        if not found[0]:
            return None
        data = np.ascontiguousarray(held).tobytes()
        length, text_bytes = (int.from_bytes(data[at : at + 8], "little") for at in (8, 16))
        needed = _count_of(length, rows.layout)
        if not data.startswith(_MAGIC) or not found[:needed].all():
            raise InvalidArgumentError(f"the rows from key {STATE_KEY} on are no state", field="table")
    at = _HEAD_BYTES + text_bytes

    def tensor_of(number: int, dtype: torch.dtype, shape: Sequence[int], was_on_gpu: bool) -> torch.Tensor:
        del number, was_on_gpu
        nonlocal at
        tensor = torch.empty(tuple(shape), dtype=dtype)
        begin, at = at, at + tensor.numel() * tensor.element_size()
        if tensor.numel():
            tensor.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(data[begin:at], np.uint8)
        return tensor

    return unpacked(data[_HEAD_BYTES : _HEAD_BYTES + text_bytes], tensor_of)


def _keys(count: int) -> U64:
    return np.arange(STATE_KEY, STATE_KEY + count, dtype=np.uint64)


def _count_of(length: int, layout: RowLayout) -> int:
    return -(-length // layout.row_bytes)
