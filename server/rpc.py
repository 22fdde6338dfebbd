"""Make gRPC methods of coroutines that raise the errors of gpkvs: each error becomes a status."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from typing import Any, NamedTuple, NoReturn

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.metadata import EXECUTED_KEY, FAILED_CHECK_KEY, FOUND_KEY, FULL_KEY, NOT_EXECUTED, REQUEST_ID_KEY
from gpkvs.server.access.caller import ANYONE, Caller, LoginError
from gpkvs.server.access.connections import end_of
from gpkvs.server.access.login import Logins
from gpkvs.server.access.rights import Check, RightsError, check_of
from gpkvs.server.calls import CallContext, Handler, Service, stream_stream, stream_unary
from gpkvs.server.door.handlers import Handlers
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate
from gpkvs.server.interceptor import of_type
from gpkvs.server.memory import Account, Memory
from gpkvs.server.receives import Receives
from gpkvs.server.running_call import RunningCall, begin_grpc, request_id_of
from gpkvs.server.slow_log import SlowLog
from gpkvs.server.status import ErrorStatus, tell
from gpkvs.server.wire import require_message


class Call(NamedTuple):
    """What a method of one request is told of the call."""

    method: str  # its full name
    context: CallContext
    caller: Caller
    account: Account
    message_bytes: int  # of the request as it came


Method = Callable[[Any, Call], Awaitable[Message]]
ServerStreamMethod = Callable[[Any, Call], AsyncGenerator[Message, None]]
StreamMethod = Callable[[CallContext, Caller, Account], Awaitable[None]]


class Doors(NamedTuple):
    """What every call passes before its method runs."""

    logins: Logins
    gate: Gate
    memory: Memory
    receives: Receives
    metrics: Metrics
    slow_log: SlowLog


# A field of bytes takes 16 bytes when it is parsed, and a repeated one may take 2 in its message.
_PARSED_FACTORS = {"gpkvs.v1.MultiGetRequest": 9}
_NOT_EXECUTED = ((EXECUTED_KEY, NOT_EXECUTED),)
# Methods whose calls do not end by themselves: a server that stops does not wait for one whose client does not read.
_ENDLESS = ("gpkvs.v1.KV.Watch",)


def add_service(server: Handlers, service: ServiceDescriptor, servicer: object, doors: Doors) -> None:
    """Register an object that has a coroutine for each method of a service.

    A method of one request takes it and the `Call`, and returns the response, or a generator of responses. A method of
    two streams takes the context, the caller and the call's account, reads and writes bytes there, checks what the
    caller may do, and returns when it is done.

    Raises
    ------
    LookupError
        If nobody has said which right a method needs.
    """

    def handler(method: MethodDescriptor) -> Handler:
        run, name = getattr(servicer, method.name), method.full_name
        check = check_of(name)
        if method.client_streaming:
            return stream_stream(_stream(name, run, doors))
        request_class = GetMessageClass(method.input_type)
        if method.server_streaming:
            responding = of_type("server_stream", _server_stream(name, run, check, request_class, doors))
            return stream_stream(responding)
        # On the wire it is the same as unary. As unary, gRPC would hold the message until the call ends, and would
        # say nothing of a call whose message is still being received.
        return stream_unary(of_type("unary", _unary(name, run, check, request_class, doors)))

    handlers = {f"/{service.full_name}/{method.name}": handler(method) for method in service.methods}
    server.add_generic_rpc_handlers((Service(handlers),))


def _unary(
    name: str, method: Method, check: Check, request_class: type[Message], doors: Doors
) -> Callable[[object, CallContext], Awaitable[bytes]]:
    """Wrap a method: bytes in, bytes out, errors as statuses.

    Messages are parsed here: grpc would end a call with UNKNOWN if a client sent bytes that are no message.
    """
    logins, gate, memory, *_ = doors

    async def run(context: CallContext, account: Account, running: RunningCall) -> bytes:
        caller = ANYONE if logins.is_open else logins.known(context) or await logins.log_in(context)
        running.user = caller.name
        data = await _only_message(context, caller, account, doors)
        running.begin()
        with gate:
            account.require_room(_PARSED_FACTORS.get(request_class.DESCRIPTOR.full_name, 1) * len(data))
            message = _parse(request_class, data)
            if not logins.is_open:
                check(caller, message)
            executing = method(message, Call(name, context, caller, account, len(data)))
            del data, message  # the frame would hold them until the call ends
            response: bytes = (await executing).SerializeToString()
            return response

    async def handler(_requests: object, context: CallContext) -> bytes:
        account = memory.open(context)
        running = begin_grpc(doors.slow_log, context, name)
        try:
            return await run(context, account, running)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await abort(context, error, name, doors.logins, doors.metrics)
        finally:
            running.end()
        raise AssertionError("abort always raises")

    return handler


def _server_stream(
    name: str, method: ServerStreamMethod, check: Check, request_class: type[Message], doors: Doors
) -> Callable[[object, CallContext], Awaitable[None]]:
    """Wrap a method of one request and many responses; a response is sent before the next one is asked for."""
    gate = nullcontext() if name in _ENDLESS else doors.gate

    async def run(context: CallContext, account: Account, running: RunningCall) -> None:
        caller = await doors.logins.caller(context)
        running.user = caller.name
        data = await _only_message(context, caller, account, doors)
        with gate:
            message = _parse(request_class, data)
            check(caller, message)
            responses = method(message, Call(name, context, caller, account, len(data)))
            del data, message
            async with aclosing(responses):
                async for response in responses:
                    await context.write(response.SerializeToString())

    async def handler(_requests: object, context: CallContext) -> None:
        account = doors.memory.open(context)
        running = begin_grpc(doors.slow_log, context, name)
        try:
            await run(context, account, running)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await abort(context, error, name, doors.logins, doors.metrics)
        finally:
            running.end_scan()

    return handler


async def _only_message(context: CallContext, caller: Caller, account: Account, doors: Doors) -> bytes:
    """Receive the only message of a call, as bytes."""
    doors.gate.serving()
    account.require_room()
    return require_message(await doors.receives.read(context, caller=caller, is_stream=False))


def _parse(request_class: type[Message], data: bytes) -> Message:
    try:
        return request_class.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"these bytes are no {request_class.DESCRIPTOR.full_name}: {error}") from error


def _stream(name: str, method: StreamMethod, doors: Doors) -> Callable[[object, CallContext], Awaitable[None]]:
    """Wrap a method of streams: errors as statuses."""

    async def handler(_requests: object, context: CallContext) -> None:
        account = doors.memory.open(context)
        running = begin_grpc(doors.slow_log, context, name)
        try:
            caller = await doors.logins.caller(context)
            running.user = caller.name
            account.require_room()
            with doors.gate:
                await method(context, caller, account)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await abort(context, error, name, doors.logins, doors.metrics)

    return handler


async def abort(context: CallContext, error: Exception, method: str, logins: Logins, metrics: Metrics) -> NoReturn:
    """End a call with the status of an error.

    Parameters
    ----------
    context, error
        The call, and why it failed.
    method
        The full name of its method.
    logins, metrics
        Note the refusal, and count it.
    """
    try:
        if isinstance(error, LoginError | RightsError):
            logins.note_refusal(error, end_of(context.peer()).address, method)
        request_id = request_id_of(context)
        told = tell(logins.for_caller(error), method, metrics, request_id)
        await context.abort(told.code, told.text, _trailing(told, request_id))
    finally:
        # gRPC keeps the exception with which it aborts. That one keeps this error, whose frames hold the message.
        error.__traceback__ = error.__cause__ = error.__context__ = None
    raise AssertionError("abort always raises")


def _trailing(told: ErrorStatus, request_id: str) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of a call that failed."""
    trailing: tuple[tuple[str, str], ...] = _NOT_EXECUTED if told.is_refusal else ()
    if told.full:
        trailing += ((FULL_KEY, told.full),)
    if told.conflict:
        trailing += ((FAILED_CHECK_KEY, str(told.conflict.index)),)
        if told.conflict.found is not None:
            trailing += ((FOUND_KEY, str(told.conflict.found)),)
    return (*trailing, (REQUEST_ID_KEY, request_id))
