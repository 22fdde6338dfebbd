"""The calls that took long in the native door, as the slow log has them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gpkvs.server.calls.running_call import peer_text
from gpkvs.server.door.library import Library, Protocol
from gpkvs.server.door.library import SlowCall as DoorSlowCall
from gpkvs.server.signs.slow_log import SlowCall, SlowLog


class SlowCalls:
    """Takes them while the names of users and tables are known that they have by number.

    Parameters
    ----------
    library
        The door.
    log
        That has them in the end.
    user_of
        Returns the name of a caller, by the number that the door has; empty if it is forgotten, or nobody logs in.
    """

    def __init__(self, library: Library, log: SlowLog, user_of: Callable[[int], str]) -> None:
        self._library = library
        self._log = log
        self._user_of = user_of
        self._taken: deque[SlowCall] = deque(maxlen=log.entries_max)
        log.follow(self._give)

    def take(self) -> None:
        """Take what the door has noted; to be done each second: it has room for some."""
        if self._log.entries_max:
            self._taken.extend(map(self._call_of, self._library.slow_calls()))

    def _give(self) -> list[SlowCall]:
        self.take()
        calls = list(self._taken)
        self._taken.clear()
        return calls

    def _call_of(self, call: DoorSlowCall) -> SlowCall:
        is_redis = call.protocol == Protocol.RESP
        table, key = self._log.named(call.table_id, bytes(call.key[: call.key_bytes]))
        return SlowCall(
            ended_us=call.ended_us,
            waiting_ns=call.waiting_ns,
            executing_ns=call.executing_ns,
            durable_ns=call.durable_ns,
            answering_ns=call.answering_ns,
            user=self._user_of(call.caller),
            peer=peer_text(call.peer.decode()),
            protocol="redis" if is_redis else "grpc",
            command=call.command.decode().upper() if is_redis else call.command.decode(),
            table=table,
            key=key,
            key_bytes=call.key_bytes,
            operations=call.operations,
            bytes_in=call.bytes_in,
            bytes_out=call.bytes_out,
            words=call.words,
            request_id=call.request_id.decode(),
        )
