"""Every error gpkvs raises on purpose.

The tree::

    GpkvsError
    ├── InvalidArgumentError     your request is wrong; nothing was written
    │   ├── UnknownTableError
    │   └── TableExistsError
    ├── NoSpaceError             it does not fit (heap, index, log, disk; queue, memory); nothing was written
    │   └── NoMemoryError        the process got no memory for it
    ├── ConflictError            a check of the request failed; nothing was written
    ├── ConditionFailedError     the condition of one operation failed; the operation was not done
    ├── NotANumberError          an increment of a value that is no decimal number; it was not done
    ├── NumberOverflowError      an increment over 64 bits; it was not done
    ├── CorruptRecordError       a record fails its checksum; no value is returned
    ├── ChangesLostError         what comes next in a watch is not held any more
    ├── StoreError               the store as a whole cannot be used
    │   ├── StoreLockedError     another process has it, or this one already
    │   ├── StoreClosedError
    │   ├── StoreMissingError    there is no store at this path
    │   ├── StoreAccessError     the operating system refuses (permission, read-only, I/O)
    │   ├── CorruptStoreError    bytes that must be right are wrong
    │   ├── FormatError          another version, magic or byte order
    │   └── UnsafeStoreError     used without an undo log and not closed; opening it takes accept_loss
    ├── BackendError             the backend asked for cannot run here
    │   └── ProcessorError       this processor lacks what the compiled kernels need
    └── ForkedError              opened before a fork; open again in the child
"""

from __future__ import annotations

from contextlib import ContextDecorator
from pathlib import Path

from gpkvs.text import quoted


class GpkvsError(Exception):
    """Base of all errors raised by gpkvs.

    Attributes
    ----------
    request_id
        By which a server's log and its slow log name the call that failed; empty if neither the server nor the caller
        of a client gave one.
    """

    request_id = ""


class InvalidArgumentError(GpkvsError, ValueError):
    """A request that cannot be run as it is; nothing was written.

    Parameters
    ----------
    message
        What is wrong, with the limit that was passed if there is one.
    field
        The field or column at fault, by its name in the protocol.
    index
        The operation's number in its request, where one operation is at fault.
    """

    def __init__(self, message: str, *, field: str = "", index: int | None = None) -> None:
        where = f"operation {index}, " if index is not None else ""
        super().__init__(f"{where}{field}: {message}" if field else message)
        self.field = field
        self.index = index


class UnknownTableError(InvalidArgumentError):
    """The table named in a request does not exist."""


class TableExistsError(InvalidArgumentError):
    """A table of that name exists already."""


class NoSpaceError(GpkvsError):
    """A request that does not fit; it was refused whole and nothing of it was written.

    Parameters
    ----------
    resource
        What is full: ``heap``, ``index``, ``log``, ``disk``, ``memory``, ``gpu_memory``, ``tables``, ``tables_bytes``,
        ``open_files``, or a server's ``queue``.
    message
        What was needed, what there is, and what to do.
    """

    def __init__(self, resource: str, message: str) -> None:
        super().__init__(f"{resource.replace('_', ' ')} full: {message}")
        self.resource = resource


class NoMemoryError(NoSpaceError, MemoryError):
    """The process got no memory for a request; nothing of it was written."""

    def __init__(self) -> None:
        super().__init__("memory", "the process got none for this; nothing was written: try again, or send less")


class ConflictError(GpkvsError):
    """A request one of whose checks failed: nothing of it was done.

    Parameters
    ----------
    index
        The number of the first check that failed, in its request.
    found
        The version of its key, or in a table of numbers its number; None if the key is not there.
    key
        Of a transaction, the key that it had read and that has changed since; else None.
    """

    def __init__(self, index: int, found: int | None, key: bytes | None = None) -> None:
        now = "is not there" if found is None else f"has the version (or number) {found}"
        if key is None:
            text = f"the check of operation {index} does not hold: its key {now}; nothing of the request was done"
        else:
            text = f"key {quoted(key)} has changed since the transaction read it: it {now} now; nothing was written"
        super().__init__(text)
        self.index = index
        self.found = found
        self.key = key


class ConditionFailedError(GpkvsError):
    """An operation whose condition failed: it was not done, the others of its request were.

    Parameters
    ----------
    version
        The version that its key has, or in a table of numbers its number; None if the key is not there.
    """

    def __init__(self, version: int | None) -> None:
        what = "is not there" if version is None else f"has the version (or number) {version}"
        super().__init__(f"the condition does not hold: the key {what}; the operation was not done")
        self.version = version


class ChangesLostError(GpkvsError):
    """Changes of a store that somebody wants to follow from a position on are not held, or no longer: begin anew."""


class NotANumberError(GpkvsError):
    """An increment of a key whose value is no decimal number of 64 bits; it was not done."""

    def __init__(self) -> None:
        super().__init__("the key's value is no decimal number of 64 bits; the increment was not done")


class NumberOverflowError(GpkvsError, OverflowError):
    """An increment whose sum is no signed number of 64 bits; it was not done."""

    def __init__(self) -> None:
        super().__init__("the sum is no signed number of 64 bits; the increment was not done")


class CorruptRecordError(GpkvsError):
    """A record fails its checksum or holds another key than its slot; no value is returned."""


class StoreError(GpkvsError):
    """The store as a whole cannot be used."""


class StoreLockedError(StoreError):
    """Another process has the store open, or this one has already."""

    def __init__(self, path: Path, pid: int | None, *, is_file: bool = False, is_here: bool = False) -> None:
        owner = f"process {pid}" if pid else "another process"
        if is_file:
            text = f"{path} is open already, in this process or in another one: close it there first"
        elif is_here:
            text = f"{path} is open in this process already: share that store, its threads may, or close it first"
        else:
            text = f"{path} is in use by {owner}: stop it first, or use another directory"
        super().__init__(text)
        self.path = path
        self.pid = pid


class StoreClosedError(StoreError):
    """The store was closed, or has stopped after a failure."""


class StoreMissingError(StoreError):
    """There is no store at the path."""


class StoreAccessError(StoreError):
    """The operating system refuses access to the store's files."""


class CorruptStoreError(StoreError):
    """Bytes that must be right are wrong; the store refuses to serve rather than guess.

    Parameters
    ----------
    invariant
        The name of the invariant that does not hold (`gpkvs.media.layout` lists them).
    message
        What was found.
    path, offset
        Where: the file and the byte in it.
    """

    def __init__(self, invariant: str, message: str, *, path: Path, offset: int = 0) -> None:
        super().__init__(f"{path} at byte {offset}: {invariant}: {message}")
        self.invariant = invariant
        self.path = path
        self.offset = offset


class FormatError(StoreError):
    """The files are not a store that this version reads; they are left untouched."""


class UnsafeStoreError(StoreError):
    """The store was in use with ``durability=none`` and was not closed; opening it takes ``accept_loss``."""


class BackendError(GpkvsError):
    """The backend asked for cannot run on this machine."""


class ProcessorError(BackendError):
    """The processor lacks what the compiled kernels need; of gpkvs only the clients run here."""


class ForkedError(GpkvsError):
    """It was opened before a fork and belongs to the parent process: open it again in the child."""


class memory_refused(ContextDecorator):  # noqa: N801 - as a context manager it is read as a verb
    """Turn a refusal of memory into `NoMemoryError`; for what has written nothing if it fails."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # Where NumPy forgets to say it, Python raises SystemError: "returned NULL without setting an exception".
        if isinstance(error, MemoryError) or (isinstance(error, SystemError) and "without" in str(error)):
            raise NoMemoryError from error
