"""State dictionaries of PyTorch, saved and loaded; PyTorch is needed only where this module is imported.

Tensors go into a checkpoint as their bytes, so every dtype does. What else a state holds (numbers, texts, lists,
dictionaries) goes beside them as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch

from gpkvs.config import KIB, DurabilityName
from gpkvs.errors import CorruptStoreError, InvalidArgumentError
from gpkvs.gpm.checkpoint import Checkpoint
from gpkvs.gpm.names import passing_name, real_path, replaceable
from gpkvs.gpm.opened import Closing
from gpkvs.gpm.place import Place, find_place
from gpkvs.torch.packed_state import bytes_of, packed, unpacked

_GROUP: Final = "state"
_REST: Final = "rest"  # what is no tensor: its length in 8 bytes, then JSON, then anything
_ROOM_BYTES: Final = 64 * KIB  # for the rest to grow by


def save(state: Mapping[Any, Any], path: Path | str, *, durability: DurabilityName = "auto") -> None:
    """Save a state durably to a file, which is replaced at once; as `torch.save`, without pickle.

    Parameters
    ----------
    state
        Dictionaries, lists, tuples, numbers, texts and tensors, as `state_dict` returns them.
    path
        The file; its directory is there.
    durability
        As `gpkvs.open` has it.

    Raises
    ------
    InvalidArgumentError
        If the state holds something else, with its place.
    NoSpaceError, StoreMissingError, StoreAccessError, StoreLockedError
        As `Checkpoint.create` raises them; a file that was there stays.
    """
    path = real_path(path)
    begun = passing_name(path)
    with replaceable(path) as name:
        try:
            with StateCheckpoint.create(begun, state, durability=durability, once=True) as checkpoint:
                checkpoint.save(state)
            name(begun)
        finally:
            begun.unlink(missing_ok=True)


def load(path: Path | str, *, place: Place | str | None = None) -> dict[Any, Any]:
    """Load the state of a file.

    Parameters
    ----------
    path
        The file, of `save` or of a `StateCheckpoint`.
    place
        "cuda" brings all tensors to that GPU, "cpu" to the host; by default they go where they were.

    Raises
    ------
    InvalidArgumentError
        If nothing was saved in it.
    StoreMissingError, StoreLockedError, FormatError, CorruptStoreError
        As `Checkpoint.open` and `Checkpoint.load` raise them.
    """
    where = find_place(place) if place is not None else None
    with Checkpoint.open(path, readonly=True) as file:
        was_on_gpu = file.about.get("is_on_gpu")
    target = where or find_place("cuda" if was_on_gpu and torch.cuda.is_available() else "cpu")
    with Checkpoint.open(path, place=target, readonly=True) as file:
        state: dict[Any, Any] = _unpacked(file, file.load(_GROUP), all_there=where is not None)
        return state


class StateCheckpoint(Closing):
    """A file of which one state after the other is saved, atomically; `create` makes it, `open` opens it.

    Number and bytes of tensors stay as they were when it was made; the rest may change.

    Examples
    --------
    >>> with StateCheckpoint.create("run.gpm", model.state_dict()) as checkpoint:
    ...     for step in range(1000):
    ...         train(model)
    ...         if step % 100 == 0:
    ...             checkpoint.save(model.state_dict(), wait=False)
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.path, self.place = checkpoint.path, checkpoint.place

    @classmethod
    def create(
        cls,
        path: Path | str,
        state: Mapping[Any, Any],
        *,
        durability: DurabilityName = "auto",
        replace: bool = False,
        once: bool = False,
    ) -> Self:
        """Make a file for states like one; nothing is saved yet.

        Parameters
        ----------
        path
            The file; its directory is there.
        state
            As `save` has it. If any of its tensors is on a GPU, all are copied by way of that GPU.
        durability, replace
            As `Checkpoint.create` has them.
        once
            Whether there is room for one save only.

        Raises
        ------
        InvalidArgumentError, NoSpaceError, BackendError, StoreMissingError, StoreAccessError, StoreLockedError
            As `save` and `Checkpoint.create` raise them.
        """
        text, tensors = packed(state)
        gpu = next((tensor.device.index or 0 for tensor in tensors if tensor.is_cuda), None)
        place = find_place("cpu" if gpu is None else f"cuda:{gpu}")
        forms: dict[str, Any] = {
            str(n): (tensor.numel() * tensor.element_size(), "u1") for n, tensor in enumerate(tensors)
        }
        room = len(text) + 8 + (0 if once else _ROOM_BYTES)
        about = {"is_on_gpu": gpu is not None}
        groups = {_GROUP: {**forms, _REST: (room, "u1")}}
        return cls(
            Checkpoint.create(path, groups, place=place, durability=durability, replace=replace, once=once, about=about)
        )

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        readonly: bool = False,
    ) -> Self:
        """Open a file; parameters and errors as `Checkpoint.open` has them."""
        return cls(Checkpoint.open(path, place=place, durability=durability, readonly=readonly))

    def save(self, state: Mapping[Any, Any], *, wait: bool = True) -> int:
        """Save a state; return its number.

        Parameters
        ----------
        state
            With as many tensors as the file was made for, each of as many bytes, in the same order.
        wait
            As `Checkpoint.save` has it.

        Raises
        ------
        InvalidArgumentError
            If the number or the bytes of the tensors differ, or the rest has grown too much.
        NoSpaceError, StoreAccessError, StoreClosedError, OSError
            As `Checkpoint.save` raises them.
        """
        text, tensors = packed(state)
        forms = self._checkpoint.groups[_GROUP]
        room = forms[_REST][0][0]
        if len(text) + 8 > room:
            raise InvalidArgumentError(
                f"{self.path} has room for {room} bytes beside the tensors, not {len(text)}: make a new one"
            )
        if len(tensors) != len(forms) - 1:
            raise InvalidArgumentError(f"{self.path} is for {len(forms) - 1} tensors, not {len(tensors)}")
        rest = np.zeros(room, np.uint8)
        rest[: len(text) + 8] = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
        xp = self.place.xp
        arrays: dict[str, Any] = {str(n): self._bytes_of(tensor) for n, tensor in enumerate(tensors)}
        number = self._checkpoint.save(_GROUP, {**arrays, _REST: xp.asarray(rest)}, wait=wait)
        if self.place.is_gpu and not wait:
            # The default stream makes the copies: what the current one launches next comes after them.
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        return number

    def _bytes_of(self, tensor: torch.Tensor) -> Any:
        there = bytes_of(tensor.to(_device_of(self.place)))
        return self.place.adopt(there if self.place.is_gpu else there.numpy())

    def load(self) -> dict[Any, Any]:
        """Return the last state, with tensors where they were; raises as `Checkpoint.load`."""
        state: dict[Any, Any] = _unpacked(self._checkpoint, self._checkpoint.load(_GROUP), all_there=False)
        return state

    def wait(self) -> None:
        """Return when the last save is durable; raises what it raised."""
        self._checkpoint.wait()

    def close(self) -> None:
        """Wait for the last save, and let go of the file."""
        self._checkpoint.close()


def _device_of(place: Place) -> torch.device:
    return torch.device(place.name)


def _unpacked(file: Checkpoint, arrays: dict[str, Any], *, all_there: bool) -> Any:
    """Return the state that arrays hold; its tensors where they were, or all where the file's place is."""
    rest = bytes(file.place.to_host(arrays[_REST]))
    length = int.from_bytes(rest[:8], "little")
    if length > len(rest) - 8:
        raise CorruptStoreError("gpm-checkpoint-data", f"a state of {length} bytes in {len(rest)}", path=file.path)

    def tensor_of(number: int, dtype: torch.dtype, shape: Sequence[int], was_on_gpu: bool) -> torch.Tensor:
        array = arrays[str(number)]
        if not array.size:
            return torch.empty(shape, dtype=dtype, device=_device_of(file.place) if all_there or was_on_gpu else "cpu")
        flat = torch.from_dlpack(array) if file.place.is_gpu else torch.from_numpy(array)
        tensor = flat.view(dtype).reshape(shape)
        return tensor if all_there or was_on_gpu or not file.place.is_gpu else tensor.cpu()

    return unpacked(rest[8 : 8 + length], tensor_of)
