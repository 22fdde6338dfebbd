"""How `memory_bytes_max` is shared out, and which limits are lowered to fit their shares.

    a quarter    what the door holds of calls that are not there whole yet: connections x streams of each
    an eighth    memory that was freed and stays in the process
    engine       the working memory of one transaction: some copies of its bytes, some columns for its operations.
                 Smaller ones share it while they wait for a flush
    changes      the newest changes, for watches: a sixteenth at most
    clients      the rest: open calls, requests that wait, responses (`gpkvs.server.account.memory`)

A message is at most a 64th of all memory: a client may have several on their way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpkvs.config import MIB, Limits, ServerConfig, StoreConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.process.machine import machine_bytes
from gpkvs.server.account.message_limits import message_limits

if TYPE_CHECKING:
    from gpkvs.batch import BatchResult

# Calls of one connection at the same time; further ones wait in the client. HTTP/2 (RFC 9113) recommends no fewer.
CONNECTION_CALLS_MAX = 100
# What a client may send of a message before the server asks for it (HTTP/2's window of a stream; door/grpc/call.hpp).
WINDOW_BYTES = 16 << 10
# Until its handshake is over, a connection takes the place of another one.
HANDSHAKE_SECONDS = 10
# A call of Python's beside its messages: its tasks, its context and the door's state (measured: about 25 KB).
CALL_BYTES = 24 << 10
# A call whose message is not there yet: its own state and the first bytes of the message.
_PENDING_CALL_BYTES = (8 << 10) + WINDOW_BYTES

_MEMORY_BYTES_MIN = 64 * MIB
# Without a setting, clients may take one of so many parts of the machine's memory.
_MEMORY_PARTS = 4
_MESSAGE_SHARE = 64
_CHANGES_SHARE = 16
_MESSAGE_BYTES_PER_OP = 64
# The engine takes, measured: columns of a plan, and copies of keys, of values and of results.
_BYTES_PER_OP = 200
_COPIES = 3


# Beside what it holds for clients, and its indexes, a server needs so much (deploy/README.md).
PROCESS_BYTES = 100 * MIB
PROCESS_SHARE = 1.3  # of what clients may take


def memory_limit_bytes(own_bytes: int) -> int:
    """Return the least limit of memory for a server that has indexes and files of so many bytes in memory.

    A server without options lets clients take a quarter of its limit: with less than this, that does not fit beside the
    rest.
    """
    return max(
        int((own_bytes + PROCESS_BYTES) / (1 - PROCESS_SHARE / _MEMORY_PARTS)), _MEMORY_PARTS * _MEMORY_BYTES_MIN
    )


def transaction_bytes(payload_bytes: int, operations: int) -> int:
    """Return the memory that a transaction takes of so many operations, with keys and values of so many bytes."""
    return _COPIES * payload_bytes + _BYTES_PER_OP * operations


@dataclass(frozen=True)
class Bounds:
    """The limits of one server; within them everything fits its memory.

    Attributes
    ----------
    limits
        The limits of a request.
    config
        What the user set, with smaller messages and batches where memory asks for it.
    batch_result_bytes_max
        Bytes of values that one transaction may read.
    connections_max
        Connections at the same time.
    freed_bytes_max
        Bytes that were freed and stay in the process; what is more goes back to the system.
    clients_bytes_max
        Bytes of open calls, requests and responses (`gpkvs.server.account.memory.Memory`).
    changes_bytes
        Bytes of the newest changes, which the store holds while somebody watches.
    """

    limits: Limits
    config: ServerConfig
    batch_result_bytes_max: int
    connections_max: int
    freed_bytes_max: int
    clients_bytes_max: int
    changes_bytes: int

    def working_bytes(self, payload_bytes: int, operations: int) -> int:
        """Return the memory that a transaction takes while it runs, with the values that it may read."""
        return _COPIES * (payload_bytes + self.batch_result_bytes_max) + _BYTES_PER_OP * operations

    @property
    def engine_bytes(self) -> int:
        """The engine's share: the working memory of the largest batch. No batch holds less than one request."""
        config = self.config
        return self.working_bytes(
            max(config.batch_bytes_max, config.message_bytes_max),
            max(config.batch_ops_max, self.limits.request_ops_max),
        )

    def stored_bytes(self, payload_bytes: int, operations: int, result: BatchResult) -> int:
        """Return the memory that a transaction takes from then on, when the values that it read are known."""
        value_bytes = len(result.part.result.values) if result.part else 0
        return transaction_bytes(payload_bytes + value_bytes, operations)


def usual_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that clients may take where no `memory_bytes_max` is set; `root` as of `machine`."""
    return machine_bytes(root) // _MEMORY_PARTS


def memory_bytes_of(config: ServerConfig) -> int:
    """Return the memory that clients may make a server take."""
    return usual_memory_bytes() if config.memory_bytes_max is None else config.memory_bytes_max


def bounds_of(
    config: ServerConfig,
    limits: Limits,
    batch_result_bytes_max: int,
    memory_bytes_max: int,
    changes_bytes: int = StoreConfig.changes_bytes,
) -> Bounds:
    """Share the memory out.

    Raises
    ------
    InvalidArgumentError
        If it is too little for a server.
    """
    if memory_bytes_max < _MEMORY_BYTES_MIN:
        raise InvalidArgumentError(
            f"{memory_bytes_max:,} bytes, a server needs at least {_MEMORY_BYTES_MIN:,}", field="memory_max"
        )
    share = memory_bytes_max // _MESSAGE_SHARE
    message_bytes_max = min(config.message_bytes_max, share)
    limits = message_limits(limits, message_bytes_max)
    config = replace(
        config,
        message_bytes_max=message_bytes_max,
        batch_ops_max=min(config.batch_ops_max, share // _MESSAGE_BYTES_PER_OP),
        batch_bytes_max=min(config.batch_bytes_max, share),
        stream_bytes_max=min(config.stream_bytes_max, share),
    )
    result_bytes_max = max(limits.result_bytes_max, min(batch_result_bytes_max, share))
    bounds = Bounds(
        limits=limits,
        config=config,
        batch_result_bytes_max=result_bytes_max,
        connections_max=memory_bytes_max // 4 // (CONNECTION_CALLS_MAX * _PENDING_CALL_BYTES),
        freed_bytes_max=memory_bytes_max // 8,
        clients_bytes_max=0,
        changes_bytes=min(changes_bytes, memory_bytes_max // _CHANGES_SHARE),
    )
    others_bytes = memory_bytes_max // 4 + bounds.freed_bytes_max + bounds.engine_bytes + bounds.changes_bytes
    clients_bytes_max = memory_bytes_max - others_bytes
    return replace(bounds, clients_bytes_max=clients_bytes_max)
