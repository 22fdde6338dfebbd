"""States of PyTorch as JSON and tensors: dictionaries, lists, tuples, numbers, texts, and tensors as their bytes.

The JSON names each tensor by its number, with its type, its shape, and whether it was on a GPU. There is no pickle: to
read a state runs nothing of its author's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from gpkvs.errors import InvalidArgumentError

_PLAIN: Final = (str, int, float, bool, type(None))


def packed(state: Mapping[Any, Any]) -> tuple[bytes, list[torch.Tensor]]:
    """Return a state as JSON that names its tensors by number, and the tensors.

    Raises
    ------
    InvalidArgumentError
        If the state holds something else, with its place.
    """
    tensors: list[torch.Tensor] = []

    def pack(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized or value.is_meta:
                raise InvalidArgumentError(
                    f"{where} is a tensor of {value.dtype}, {value.layout}, on {value.device}: only dense ones are "
                    "saved (to_dense, dequantize)"
                )
            tensors.append(value)
            kind = str(value.dtype).removeprefix("torch.")
            return {"x": [len(tensors) - 1, kind, list(value.shape), value.is_cuda]}
        if isinstance(value, Mapping):
            return {
                "d": [[pack(key, f"{where}, a key"), pack(item, f"{where}[{key!r}]")] for key, item in value.items()]
            }
        if isinstance(value, (list, tuple)):
            items = [pack(item, f"{where}[{number}]") for number, item in enumerate(value)]
            return {"l" if isinstance(value, list) else "t": items}
        if isinstance(value, _PLAIN):
            return value
        raise InvalidArgumentError(
            f"{where} is a {type(value).__name__}: a state holds tensors, numbers, texts, lists and dictionaries"
        )

    return json.dumps(pack(state, "state"), separators=(",", ":")).encode(), tensors


def unpacked(text: bytes, tensor_of: Callable[[int, torch.dtype, Sequence[int], bool], torch.Tensor]) -> Any:
    """Return the state of a JSON text; `tensor_of` gives each tensor, by number, type, shape and "was on a GPU"."""

    def unpack(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == "d":
            return {unpack(key): unpack(item) for key, item in inner}
        if kind == "x":
            number, dtype, shape, was_on_gpu = inner
            return tensor_of(number, getattr(torch, dtype), shape, was_on_gpu)
        items = [unpack(item) for item in inner]
        return items if kind == "l" else tuple(items)

    return unpack(json.loads(text))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor is, also a view, as bytes (n,) uint8, where it is."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)
