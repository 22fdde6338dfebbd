"""What the engine asks of a backend, and planners of the processor that a plan runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.path_costs import PathCosts
from gpkvs.batch import U8, U32, U64
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.pm.region import Region

if TYPE_CHECKING:
    from gpkvs.backends.row_cache import RowCaches

Argument = NDArray[np.generic] | int | Index
Column = TypeVar("Column", bound=NDArray[Any])
Result = TypeVar("Result")


class Stored(NamedTuple):
    """What a kernel that stores to PM tells when its stores are complete.

    Attributes
    ----------
    seconds
        That they took.
    total
        The sum of a column that it filled, modulo 2^64, if one was asked for.
    """

    seconds: float
    total: int


class Leaving(NamedTuple):
    """Columns of `Processor.deliver` on their way to the host, for who waits for them in another way.

    Attributes
    ----------
    event
        Tells native code that they are there; 0: they are.
    kept
        What must live until then.
    """

    event: int
    kept: tuple[object, ...]


class Processor(Protocol):
    """Runs kernels over columns: the host's threads, or a GPU.

    All columns are C-contiguous arrays of `xp`, in memory that the processor's kernels can reach.

    Attributes
    ----------
    xp
        The array module that makes columns: NumPy, or one that does the same on another device.
    host
        The backend of the host's threads; on a CPU it is this one.
    host_threads
        The address of the native pool of the host's threads.
    launcher
        The address of what native code launches kernels with (``kernels/base/launcher.hpp``).
    chunk_slots_min
        Slots of the smallest chunk that is worth one of its own (`gpkvs.engine.commit.chunked_slots`).
    """

    host_threads: int
    launcher: int
    chunk_slots_min: int

    @property
    def host(self) -> Backend: ...  # noqa: D102 - above

    @property
    def xp(self) -> ModuleType: ...  # noqa: D102 - above

    def upload(self, column: Column, /) -> Column:
        """Return a column of the host as one of `xp`; it may be the same."""

    def upload_later(self, column: Column, /) -> Callable[[], Column]:
        """Begin to bring a column over, contiguous or constant; what is returned gives it when it is needed.

        It does not wait for what is launched in between.
        """

    def download(self, column: Column, /) -> Column:
        """Return a column of `xp` as one of the host; it may be the same."""

    def deliver(self, column: Column, /) -> Column:
        """Return a column of `xp` as one of the host that outlives the transaction; it is there after `delivered`."""

    def start_delivery(self) -> None:
        """Have the columns of `deliver` leave behind what was launched so far: the link carries what waits first."""

    def delivered(self) -> None:
        """Return when all columns of `deliver` are there."""

    def leaving(self) -> Leaving:
        """Have the columns of `deliver` leave, as `start_delivery` does; `delivered` no longer waits for them."""

    def download_later(self, column: Column, into: Column, /) -> Callable[[], None]:
        """Begin to bring a contiguous column to one of `result_column`; what is returned waits until it is there."""

    def result_column(self, count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """Return an uninitialised column of the host that outlives the transaction."""

    def total(self, column: NDArray[Any], /) -> int:
        """Return the sum of a column of numbers modulo 2^64, or how many of its truth values are true."""

    def numbers_where(self, mask: NDArray[Any], /) -> U32:
        """Return the numbers of the elements that are 1, in a column of truth values or of bytes 0 and 1."""

    def scratch(self, count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """Return an uninitialised column that lasts until the next `begin`."""

    def launch(self, kernel: str, items: int, /, *, keys_per_item: int = 1, **arguments: Argument) -> None:
        """Run a kernel over `items` items, after those launched before.

        What it stored to PM is there when this returns; what it stored to columns, for later kernels and `download`.

        Parameters
        ----------
        kernel
            Its name in ``gpkvs/kernels``.
        items
            How many logical threads; 0 does nothing.
        keys_per_item
            How many keys one item stands for, where it is more than one (a block, say); it sizes the shares of threads.
        **arguments
            Every field of the kernel's arguments, by name: an array (also one of the host), an index, an address in PM,
            or a number.
        """

    def launch_unawaited(
        self,
        kernel: str,
        items: int,
        /,
        *,
        mirrored: int | None = None,
        summed: U64 | None = None,
        **arguments: Argument,
    ) -> Callable[[], Stored]:
        """Run a kernel that stores to PM, as `launch` does, unawaited. There may be one at a time.

        Parameters
        ----------
        kernel, items, **arguments
            As there; the columns are the processor's own.
        mirrored
            How many items a read image of the index gets, where others store the rest to PM; by default `items`.
        summed
            A column that the kernel fills, whose sum is wanted.

        Returns
        -------
        callable
            Waits until its stores to PM are complete.
        """

    def get_numbers(self, keys: U8, index: Index, status: U8, values: U64, /) -> int:
        """Look up keys of 8 bytes in a table of numbers; all is there when this returns.

        Parameters
        ----------
        keys : (8 n,) uint8
            On the host, or a column of `xp`.
        index
            Of the table.
        status : (n,) uint8
            What each of them sees: `OK` or `NOT_FOUND`. As `values`, it is of `result_column` if the keys are on the
            host, else a column of `xp`.
        values : (n,) uint64
            Their values; 0 where there is none.

        Returns
        -------
        int
            How many keys are not there.
        """

    def find_numbers(self, keys: U8, index: Index, found: U8, values: U64, /) -> None:
        """Look up keys as `get_numbers` does, but say whether each of them is there: 1 or 0 in `found`."""

    def address(self, argument: NDArray[Any] | Index, /) -> int:
        """Return where kernels find a column, or what they read of an index."""

    @property
    def queue(self) -> int:
        """Where native code launches, as the driver knows it."""

    def run_native(self, launch: Callable[[], int], /) -> None:
        """Have native code launch kernels, after those launched before; it returns an error of the driver, or 0.

        Raises
        ------
        BackendError
            That says the error.
        """

    def settle(self) -> None:
        """Return when all that was launched is done; calls for other processors go on meanwhile."""

    def chunk_queues(self, turn: int, /) -> dict[str, int]:
        """Return what launches chunks, their queues and events, by the fields of ``kernels/commit/chunks.hpp``.

        `turn` is 0 or 1: those of one batch are in use while the next one begins.
        """

    def stores_durably(self, region: Region | Image, /) -> bool:
        """Return whether what kernels store to a file here is durable when they are done, as its domain asks."""

    def shares_slots(self, region: Region | Image, count: int, /) -> bool:
        """Return whether the host's threads store a part of so many slots that were planned here."""


@dataclass(frozen=True)
class Shard:
    """A processor's share of all indexes: of each, the stripes of blocks whose turn is its own.

    Attributes
    ----------
    number, count
        Which of how many.
    stripe_blocks
        How many blocks there are before the next one's turn.
    """

    number: int
    count: int
    stripe_blocks: int


WHOLE = Shard(0, 1, 1)
"""The share of a processor that has no others beside it."""


class Backend(Processor, Protocol):
    """Runs kernels for a store, on one processor or on several.

    Attributes
    ----------
    name
        As users know it.
    description
        The same, with what matters for what is durable and how fast.
    host_ops_max
        Operations of the largest batch that is better off on the host, as far as is known at the start.
    path_costs
        What batches take on the host and here, which decides instead; `None` where `host_ops_max` does.
    processors
        Who plans a large batch together; this one comes first. Each can read all of an index, and best its own stripes.
    stripe_blocks
        Blocks of an index that one of them has before the next one's turn.
    shared_ops_min
        Operations of the smallest batch that they plan together.
    row_caches
        The rows of tables that are kept in its memory; None: its memory is the host's.
    """

    name: str
    host_ops_max: int
    path_costs: PathCosts | None
    stripe_blocks: int
    shared_ops_min: int
    row_caches: RowCaches | None

    @property
    def processors(self) -> Sequence[Processor]: ...  # noqa: D102 - above

    def each(self, calls: Sequence[Callable[[], Result]], /) -> list[Result]:
        """Make the calls at the same time, one for each processor, in their order; return what they return.

        If some fail, the first one's error is raised when all have ended.
        """

    def meet(self) -> None:
        """Have what each processor launches from now on see all that the others have launched."""

    @property
    def description(self) -> str: ...  # noqa: D102 - above

    def enter(self) -> Any:
        """Prepare the calling thread for calls of the backend; return what `leave` needs to have it as it was."""

    def leave(self, entered: Any, /) -> None:
        """Leave the calling thread as it was before `enter`."""

    def catch_up(self, index: Index, /) -> None:
        """Bring the read image of an index up to date with what the host's threads stored."""

    def catch_up_seconds(self, index: Index, /) -> float:
        """Return what that will take, as far as is known; 0: it is up to date."""

    def begin(self) -> None:
        """Begin a transaction: all scratch columns may be used again, those of the host too."""

    def adopt(self, column: Any, /) -> NDArray[Any]:
        """Return an array of another library (one that speaks DLPack) as one of the backend's or the host's, uncopied.

        Of what `dlpack.of_gpu` has told of it, the bytes are returned.

        Raises
        ------
        InvalidArgumentError
            If its memory is out of reach.
        """

    def attach(self, region: Region | Image, /) -> None:
        """Make a file of a store reachable for kernels, before the first one that is given its address."""

    def detach(self, region: Region | Image, /) -> None:
        """Let go of a file, before its mapping grows."""

    def attach_memory(self, memory: U8, /) -> None:
        """Make memory of the host reachable for kernels by its address, until the backend is closed."""

    def attach_index(self, index: Index, /) -> None:
        """Make an index reachable for kernels; a backend may keep a read image of its own."""

    def detach_index(self, index: Index, /) -> None:
        """Let go of an index, before it is unmapped."""

    def follow(self, index: Index, slots: U64, contents: U64, /) -> None:
        """Have a read image of an index follow what the host's threads stored, of which there are columns of `xp`."""

    def host_stored(self, index: Index, slots: U64, /) -> None:
        """Take note that the host's threads stored to slots of an index."""

    def late_slots(self, index: Index, /) -> int:
        """Return the address of the notes of slots that the read image of an index lags behind in; 0: there is none."""

    def host_stored_blocks(self, index: Index, first: int, last: int, /) -> None:
        """Take note that the host's threads stored to the blocks `first` to `last - 1` of an index."""

    def prepare_growth(self, index: Index, /) -> None:
        """Take note that the file of an index is long enough for twice its blocks: it will grow soon.

        Raises
        ------
        OSError
            If the system refuses what the backend wants to do ahead; `grow_index` tries again.
        """

    def reach_blocks(self, index: Index, first: int, /) -> None:
        """Have kernels reach a growing index from the block `first` on, before anything is stored there.

        Raises
        ------
        NoSpaceError
            If they cannot; nothing has changed.
        """

    def grow_index(self, index: Index, /) -> None:
        """Have room in memory for twice the blocks of an index; its file is that long, and no kernel runs.

        Raises
        ------
        NoSpaceError, OSError, MemoryError
            If there is none; nothing has changed.
        """

    def close(self) -> None:
        """Give back threads and memory."""
