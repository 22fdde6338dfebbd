"""Settings of a store and of a server; units stand in the names.

A field with a `Setting` is also an option of `gpkvs serve`. It is declared only here:
`gpkvs.cli.config_options` makes the option from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

DurabilityName = Literal["auto", "fence", "flush", "msync", "process", "none"]
BackendName = Literal["auto", "cpu", "cuda"]
CommitName = Literal["auto", "undo", "journal"]
FormatName = Literal["auto", "3", "4"]

HEAP_BYTES_MAX = 1 << 44  # that references can name
SEGMENT_BYTES_MIN = 64 * KIB  # of a heap, which has two at least
INDEX_BYTES_MIN = 64 * KIB  # a block
INDEX_BYTES_MAX = 1 << 44
LOG_BYTES_MIN = 128 * KIB
JOURNAL_BYTES_MIN = 1 * MIB
JOURNAL_BYTES_MAX = 1 << 40
VALUE_BYTES_MOST = 1 * GIB
RESULT_BYTES_USUAL = 64 * MIB  # that a request may read; more where a value may be longer
VALUE_BYTES_USUAL = 16 * MIB  # of the longest value, in a store without blobs
HEAP_BYTES_USUAL = 4 * MIB  # of a heap that may grow, when the store is made
JOURNAL_BYTES_USUAL = 256 * MIB  # one request of as many operations as are allowed fits a frame
LOG_BYTES_MAX = 64 * MIB  # of an undo log that may grow: for a million changes in one transaction

MESSAGE_BYTES_MOST = (1 << 31) - 1  # that gRPC takes

# What each size of a new store may be: the least, and the most.
SIZE_BOUNDS: Final = {
    "index_bytes": (INDEX_BYTES_MIN, INDEX_BYTES_MAX),
    "heap_bytes": (2 * SEGMENT_BYTES_MIN, HEAP_BYTES_MAX),
    "heap_bytes_max": (2 * SEGMENT_BYTES_MIN, HEAP_BYTES_MAX),
    "log_bytes": (LOG_BYTES_MIN, 1 << 40),
    "journal_bytes": (JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX),
}

IMPORT_OPS_USUAL = 8192  # records in a request of an import

DEFAULT_TABLE = "default"

# Where a change of a setting counts.
AT_START, NEW_STORE_ALONE, NEW_STORE_FIRST = "restart", "new store", "new store, restart"

# The groups of options, in the order of the help; options without a group come before them.
SERVER, SECURITY, NEW_STORE, LIMITS = GROUPS = ("Server", "Security", "Sizes of a new store", "Limits")


@dataclass(frozen=True)
class Setting:
    """How a field of a config looks as an option: its help, and what a user may give.

    Parameters
    ----------
    help
        What the help of `gpkvs serve` says.
    group
        One of `GROUPS`, or none.
    min, max
        Bounds of a number, or of a size.
    is_size
        Whether it is a number of bytes, which people write with a unit: 64MiB.
    metavar
        What the help writes for the value, if the type alone does not say it.
    name
        The option's name (also in the settings file and the environment), if it differs from the field's.
    none_means
        The default that the help shows if the field's is None: a size, or words.
    counts
        Where a change counts: after a restart, in a new store alone, or in both: a size of a new store that is also a
        limit of each start.
    """

    help: str
    group: str = ""
    min: float | None = None
    max: float | None = None
    is_size: bool = False
    metavar: str | None = None
    name: str = ""
    none_means: int | str = ""
    counts: str = AT_START


@dataclass(frozen=True)
class Limits:
    """What a request may hold; a request over a limit is refused before anything is written."""

    key_bytes_min: int = 1
    key_bytes_max: Annotated[int, Setting("Size of a key.", LIMITS, min=1, is_size=True)] = 4 * KIB
    value_bytes_min: int = 0
    value_bytes_max: Annotated[int, Setting("Size of a value.", LIMITS, is_size=True)] = 128 * MIB
    request_ops_max: Annotated[int, Setting("Operations in a request.", LIMITS, min=1)] = 1 << 20
    result_bytes_max: int = RESULT_BYTES_USUAL  # of the values that one request may read


@dataclass(frozen=True)
class Sizes:
    """Sizes of a store when it is created. All of it is reserved then: by default, at most 32 MiB.

    The heap, and the undo log or the journal, may grow later.
    """

    index_bytes: int = 4 * MIB
    heap_bytes: int = 0  # 0: 4 MiB, or heap_bytes_max if that is less
    heap_bytes_max: int = 0  # 0: heap_bytes if that is given, else what the disk has
    log_bytes: int = 1 * MIB
    journal_bytes: int = 0  # 0: half of the index, or 20 MiB


@dataclass(frozen=True)
class Making:
    """How a store is opened that is to become a copy of another one; until then nobody else reads it.

    No key expires in it: what has expired in the other store is removed there, and that is told. Batches may bring the
    versions of keys (`Batch.versions`).

    Parameters
    ----------
    first_version
        That the copy gives when it is in use; all versions that batches bring are lower.
    """

    first_version: int


@dataclass(frozen=True)
class StoreConfig:
    """How to open a store."""

    backend: Annotated[BackendName, Setting("Where the kernels run.")] = "auto"
    gpus: Annotated[
        str,
        Setting(
            "Which GPUs the backend cuda uses: their numbers, as CUDA counts them (0,1), or all. They hold the tables "
            "together, and plan large batches together. auto takes what GPKVS_GPUS says, else GPU 0.",
            metavar="NUMBERS",
        ),
    ] = "auto"
    durability: Annotated[
        DurabilityName,
        Setting(
            "The persistence domain. auto takes the one it finds and says what that survives. none turns the undo log "
            "off, for benchmarks."
        ),
    ] = "auto"
    accept_loss: Annotated[
        bool,
        Setting("Open a store that was in use with durability=none and was not closed, dropping what cannot be read."),
    ] = False
    threads: Annotated[int, Setting("Threads of the cpu backend; 0: one for each processor.", min=0, max=1024)] = 0
    index_bytes: Annotated[
        int | None,
        Setting(
            "Size of the index: 32 bytes for each slot.",
            NEW_STORE,
            is_size=True,
            none_means=Sizes.index_bytes,
            counts=NEW_STORE_ALONE,
        ),
    ] = None
    heap_bytes: Annotated[
        int | None,
        Setting(
            "Size of the heap, which holds keys and values, at first. Given alone, it is also the largest size.",
            NEW_STORE,
            is_size=True,
            none_means=HEAP_BYTES_USUAL,
            counts=NEW_STORE_FIRST,
        ),
    ] = None
    heap_bytes_max: Annotated[
        int | None,
        Setting(
            "Largest size of the heap, which grows until then, or until the disk is full. A later start may change it.",
            NEW_STORE,
            is_size=True,
            none_means=HEAP_BYTES_MAX,
        ),
    ] = None
    log_bytes: Annotated[
        int | None,
        Setting(
            "Size of the undo log: 48 bytes for each change of a transaction.",
            NEW_STORE,
            is_size=True,
            none_means=Sizes.log_bytes,
            counts=NEW_STORE_FIRST,
        ),
    ] = None
    log_bytes_max: Annotated[
        int | None,
        Setting(
            "Largest size of the undo log, which grows for large transactions; --log-bytes alone keeps it as it is.",
            LIMITS,
            is_size=True,
            none_means=LOG_BYTES_MAX,
        ),
    ] = None
    commit: Annotated[
        CommitName,
        Setting(
            "How batches become durable. journal: a journal of new slots, which are written to the index later. "
            "undo: an undo log, slots in place. auto: a journal on disks, else undo.",
            NEW_STORE,
            counts=NEW_STORE_ALONE,
        ),
    ] = "auto"
    store_format: Annotated[
        FormatName,
        Setting(
            "Format of the files. auto: 4. 3 is for an older gpkvs, which opens no other one: records are longer, and "
            "values have at most 16 MiB.",
            NEW_STORE,
            name="format",
            counts=NEW_STORE_ALONE,
        ),
    ] = "auto"
    journal_bytes: Annotated[
        int | None,
        Setting(
            "Size of the journal, if there is one: 48 bytes for each change between two checkpoints.",
            NEW_STORE,
            is_size=True,
            none_means="half of the index, at least 20 MiB",
            counts=NEW_STORE_FIRST,
        ),
    ] = None
    journal_bytes_max: Annotated[
        int | None,
        Setting(
            "Largest size of the journal, which grows with the indexes and for large requests; --journal-bytes "
            "alone keeps it as it is.",
            LIMITS,
            is_size=True,
            none_means="half of all indexes, at least 256 MiB",
        ),
    ] = None
    tables_max: Annotated[
        int, Setting("Tables that the store may have; each is a file that stays open.", LIMITS, min=1)
    ] = 1000
    tables_bytes_max: Annotated[
        int | None,
        Setting(
            "Size of the indexes of all tables together.",
            LIMITS,
            is_size=True,
            none_means="no limit but the disk and, with a journal, the memory",
        ),
    ] = None
    index_bytes_max: Annotated[
        int | None,
        Setting(
            "Size to which the index of each table may grow.",
            LIMITS,
            is_size=True,
            none_means="no limit but the disk and, with a journal, the memory",
        ),
    ] = None
    changes_bytes: Annotated[
        int,
        Setting(
            "Size of the newest changes that are held while somebody watches, for all together; a 16th of --memory-max "
            "at most.",
            LIMITS,
            min=64 * KIB,
            is_size=True,
        ),
    ] = 64 * MIB
    limits: Limits = field(default_factory=Limits)
    making: Making | None = None  # of a new store that is a copy of another one
    batch_result_bytes_max: int = 64 * MIB  # of the values that one transaction may read; the rest of a batch waits
    gpu_rows_bytes: int | None = None  # of rows that a GPU keeps; None: a quarter of its free memory
    lent_value_bytes_max: int = 0  # of a value that a server takes in pieces, and sends from where it lies; 0: none

    @property
    def log_size_max(self) -> int:
        """How large the undo log may become."""
        if self.log_bytes_max is None:
            return LOG_BYTES_MAX if self.log_bytes is None else self.log_bytes
        return self.log_bytes_max

    @property
    def journal_size_max(self) -> int:
        """How large the journal may become for a transaction."""
        if self.journal_bytes_max is None:
            return JOURNAL_BYTES_USUAL if self.journal_bytes is None else self.journal_bytes
        return self.journal_bytes_max

    @property
    def journal_follows_index(self) -> bool:
        """Whether the journal may become half of all indexes, however much that is."""
        return self.journal_bytes_max is None and self.journal_bytes is None

    @property
    def sizes(self) -> Sizes:
        """The sizes of a new store."""
        given = {
            "index_bytes": self.index_bytes,
            "heap_bytes": self.heap_bytes,
            "heap_bytes_max": self.heap_bytes_max,
            "log_bytes": self.log_bytes,
            "journal_bytes": self.journal_bytes,
        }
        return Sizes(**{name: size for name, size in given.items() if size is not None})


@dataclass(frozen=True)
class ServerConfig:
    """How to serve a store."""

    listen: Annotated[str, Setting("Where gRPC listens; port 0 takes a free one.", SERVER, metavar="HOST:PORT")] = (
        "127.0.0.1:7171"
    )
    metrics: Annotated[str, Setting("Where Prometheus metrics are served.", SERVER, metavar="HOST:PORT")] = (
        "127.0.0.1:9171"
    )
    resp: Annotated[
        str | None,
        Setting(
            "Where the Redis protocol is spoken (docs/redis.md), for instance 127.0.0.1:6379.",
            SERVER,
            metavar="HOST:PORT",
            none_means="nowhere",
        ),
    ] = None
    drain_seconds_max: Annotated[
        float,
        Setting(
            "Seconds that accepted requests may take to finish after SIGTERM, and clients to read their responses.",
            SERVER,
            min=0,
        ),
    ] = 30.0
    slow_log_over_ms: Annotated[
        float,
        Setting(
            "Milliseconds: a call that takes so long comes into the slow log (gpkvs slowlog); 0: every call.",
            SERVER,
            min=0,
            max=86_400_000,
        ),
    ] = 10.0
    slow_log_entries_max: Annotated[
        int, Setting("Calls that the slow log keeps; 0: there is none.", SERVER, min=0, max=10_000)
    ] = 128
    tls_cert: Annotated[
        Path | None,
        Setting(
            "The server's certificate and those that lead to its CA, PEM: all ports speak TLS 1.3.",
            SECURITY,
            metavar="FILE",
        ),
    ] = None
    tls_key: Annotated[
        Path | None, Setting("The private key of the certificate, PEM, without a password.", SECURITY, metavar="FILE")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Setting("CAs, PEM: each client must show a certificate of one of them.", SECURITY, metavar="FILE"),
    ] = None
    users: Annotated[
        Path | None,
        Setting("Users, with their passwords, tokens and rights (see gpkvs user).", SECURITY, metavar="FILE"),
    ] = None
    audit_log: Annotated[
        Path | None,
        Setting("Where the server notes who logged in, was refused, or changed what.", SECURITY, metavar="FILE"),
    ] = None
    audit_bytes_max: Annotated[
        int,
        # With less, a short flood of refusals pushes all else out.
        Setting("Size of a file of it; then a new one begins, and 8 are kept.", SECURITY, min=64 * KIB, is_size=True),
    ] = 64 * MIB
    insecure_listen: Annotated[
        bool,
        Setting("Listen beyond this machine without TLS, or without users and client certificates.", SECURITY),
    ] = False
    message_bytes_max: Annotated[
        int,
        Setting("Size of a message, either way.", LIMITS, min=64 * KIB, max=MESSAGE_BYTES_MOST, is_size=True),
    ] = 64 * MIB
    memory_bytes_max: Annotated[
        int | None,
        Setting(
            "Memory that clients may make the server take. The server refuses requests beyond it, and lowers other "
            "limits that do not fit into it.",
            LIMITS,
            is_size=True,
            name="memory_max",
            none_means="a quarter of the machine's",
        ),
    ] = None
    receive_seconds_max: Annotated[
        float, Setting("Seconds that the message of a call may take to arrive.", LIMITS, min=0.1)
    ] = 30.0
    batch_ops_max: Annotated[
        int, Setting("Operations that the server gathers into one transaction.", LIMITS, min=1)
    ] = 1 << 20
    batch_bytes_max: Annotated[
        int, Setting("Size of the keys and values of one transaction.", LIMITS, is_size=True)
    ] = 256 * MIB
    queue_requests_max: Annotated[
        int, Setting("Requests that may wait; the server refuses more (RESOURCE_EXHAUSTED).", LIMITS, min=1)
    ] = 65_536
    watches_max: Annotated[
        int, Setting("Watches that may be open; the server refuses more (RESOURCE_EXHAUSTED).", LIMITS, min=0)
    ] = 1000
    stream_requests_max: Annotated[
        int, Setting("Requests of one Pipeline that the server reads ahead; then the client waits.", LIMITS, min=1)
    ] = 64
    # The request that is read last may exceed it.
    stream_bytes_max: Annotated[int, Setting("Size of these requests and their responses.", LIMITS, is_size=True)] = (
        32 * MIB
    )
