"""A queue over a store of this process, in the place of the door's: it runs each request by itself."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from gpkvs.errors import ConflictError, GpkvsError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.request_queue import Answer, RequestQueue
from gpkvs.server.status import told_of
from gpkvs.store import Store
from tests.server.wire import columns_of


class StoreQueue:
    """Runs requests in a thread, in the order in which they came; made inside the event loop.

    Parameters
    ----------
    store
        Runs them.
    """

    def __init__(self, store: Store) -> None:
        self.queue = RequestQueue(self)
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1)
        self._withdrawn: set[int] = set()

    def submit(self, _connection: int, ticket: int, table: int, _deadline_ns: int, message: bytes) -> None:
        """Run a request soon."""
        self._thread.submit(self._run, ticket, table, message)

    def withdraw(self, _connection: int, ticket: int) -> None:
        """Do not begin with it any more."""
        self._withdrawn.add(ticket)

    def waiting(self) -> int:
        """Return how many wait."""
        return 0

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _run(self, ticket: int, table: int, message: bytes) -> None:
        response, is_refusal = kv_pb2.BatchResponse(code=1), True
        if ticket not in self._withdrawn:
            response, is_refusal = self._response(table, kv_pb2.BatchRequest.FromString(message))
        answer = Answer(ticket, response.SerializeToString(), 0, is_refusal, 1, 2, 3, 0 if response.code else 4)
        self._loop.call_soon_threadsafe(self.queue.answered, answer)

    def _response(self, table: int, message: kv_pb2.BatchRequest) -> tuple[kv_pb2.BatchResponse, bool]:
        try:
            result = self._store.execute_requests(columns_of(message, table)).request(0)
        except GpkvsError as error:
            told = told_of(error)
            response = kv_pb2.BatchResponse(code=told.code.value[0], message=told.text, full=told.full)
            if isinstance(error, ConflictError):
                response.failed_check = error.index
                if error.found is not None:
                    response.found = error.found
            return response, told.is_refusal
        return kv_pb2.BatchResponse(
            status=result.status.tobytes(),
            values=result.values.tobytes(),
            value_lengths=result.value_lengths.astype("<u4").tobytes(),
            versions=result.versions.astype("<u8").tobytes(),
        ), False
