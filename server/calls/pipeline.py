"""Messages of a stream that the door hands on, since they are not plain: one after the other, answered in order.

The door reads the stream and bounds it (`door/grpc/pipeline.hpp`). It executes plain messages; while Python has one,
all that come behind it are Python's too.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.access.caller import Caller
from gpkvs.server.access.connections import end_of
from gpkvs.server.access.login import Logins
from gpkvs.server.access.rights import RightsError, require_batch
from gpkvs.server.account.memory import Account
from gpkvs.server.call_types import CallContext
from gpkvs.server.calls import codec
from gpkvs.server.calls.receives import Receives
from gpkvs.server.calls.running_call import RunningCall, running
from gpkvs.server.calls.status import tell
from gpkvs.server.calls.wire import require_message
from gpkvs.server.gate import NotServingError, Serving
from gpkvs.server.signs.exporter import Metrics


class Pipeline:
    """One `Pipeline` call.

    Parameters
    ----------
    logins
        Notes what the caller is refused.
    serving
        The open store and the queue.
    receives
        Where the call waits for messages.
    context, caller, account
        The call, who makes it, and what it holds.
    metrics
        Counts the requests that were refused.
    """

    def __init__(
        self,
        logins: Logins,
        serving: Serving,
        receives: Receives,
        context: CallContext,
        caller: Caller,
        account: Account,
        metrics: Metrics,
    ) -> None:
        self._logins = logins
        self._serving = serving
        self._receives = receives
        self._context = context
        self._caller = caller
        self._account = account
        self._metrics = metrics
        self._call = running.get()

    async def run(self) -> None:
        """Answer messages until the door or the client ends the stream.

        Raises
        ------
        NotServingError, LoginError
            If the server stops, or the caller is gone.
        InvalidArgumentError
            If a message is no `BatchRequest`.
        """
        while True:
            data = await self._receives.read(self._context, caller=self._caller, is_stream=True)
            if data is None:
                return
            self._caller.require()
            response = await self._response(require_message(data))
            del data  # the frame would hold it until the next message is there
            await self._context.write(response.SerializeToString())
            self._account.forget_responses()

    async def _response(self, data: bytes) -> kv_pb2.BatchResponse:
        """Run a message; return its response, or why there is none: the stream goes on then."""
        call = self._call.message() if self._call else None
        running.set(call)
        message = _parsed(data)
        try:
            response = await self._run(message)
            response.id = message.id
            return response
        except NotServingError:  # the drain took too long: this and all after it were dropped, the status says so
            raise
        except Exception as error:  # noqa: BLE001 - a client gets a code, whatever happens
            return self._failed(message.id, error, call)
        finally:
            if call:
                call.end()

    async def _run(self, message: kv_pb2.BatchRequest) -> kv_pb2.BatchResponse:
        if not self._logins.is_open:
            require_batch(self._caller, message)
        if message.request_ops:
            raise InvalidArgumentError("a message of a Pipeline is one request", field="request_ops")
        table = codec.table_of(message, self._serving.store)
        codec.check(message, table.limits, self._serving.now_ms)
        return await self._serving.queue.submit(message, table.id, self._account)

    def _failed(self, message_id: int, error: Exception, call: RunningCall | None) -> kv_pb2.BatchResponse:
        if isinstance(error, RightsError):
            self._logins.note_refusal(error, end_of(self._context.peer()).address, "gpkvs.v1.KV.Pipeline")
        request_id = call.request_id if call else ""
        told = tell(self._logins.for_caller(error), "Pipeline", self._metrics, request_id)
        failed = kv_pb2.BatchResponse(id=message_id, code=told.code.value[0], message=told.text, full=told.full)
        if told.conflict:
            failed.failed_check = told.conflict.index
            if told.conflict.found is not None:
                failed.found = told.conflict.found
        return failed


def _parsed(data: bytes) -> kv_pb2.BatchRequest:
    try:
        message: kv_pb2.BatchRequest = kv_pb2.BatchRequest.FromString(data)
        return message
    except DecodeError as error:
        raise InvalidArgumentError(f"these bytes are no gpkvs.v1.BatchRequest: {error}") from error
