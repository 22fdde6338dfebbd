"""Calls that a door hands to Python, with the real services behind; what the door itself does is played here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from gpkvs.proto.metadata import REQUEST_ID_KEY
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.access import rights
from gpkvs.server.access.caller import LoginError
from gpkvs.server.call_types import Metadata
from gpkvs.server.calls.context import Context, Opened
from gpkvs.server.calls.foreign import ForeignServices
from gpkvs.server.calls.handlers import Handlers
from gpkvs.server.calls.interceptor import CallMetrics
from gpkvs.server.calls.receives import Receives
from gpkvs.server.calls.rpc import Doors, add_service
from gpkvs.server.calls.service import KVService
from gpkvs.server.gate import Gate, NotServingError
from gpkvs.server.signs.exporter import Metrics
from gpkvs.server.signs.slow_log import SlowLog
from tests.server.access.everybody import open_to_everybody
from tests.server.counted import Counted

OK, UNIMPLEMENTED, UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED = (
    grpc.StatusCode.OK,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


@dataclass
class Call:
    """One call as its client sees it; it sends the messages that are asked for."""

    messages: list[bytes]
    responses: list[bytes] = field(default_factory=list)
    status: tuple[int, str, dict[str, str]] | None = None
    context: Any = None
    task: Any = None
    keeps_open: bool = False

    def ask(self, _call: int) -> None:
        if self.messages:
            self.context.arrived(self.messages.pop(0))
        elif not self.keeps_open:
            self.context.half_closed()

    def respond(self, _call: int, message: bytes) -> None:
        self.responses.append(message)
        asyncio.get_running_loop().call_soon(self.context.sent)

    def finish(self, _call: int, code: int, text: str, trailers: Metadata) -> None:
        assert self.status is None
        self.status = code, text, {name: value for name, value in trailers if name != REQUEST_ID_KEY}


class Served:
    """The services of a server that recovers."""

    def __init__(self, receive_seconds_max: float = 30.0) -> None:
        self.metrics = Metrics()
        self.counted = Counted()
        self.receives = Receives(receive_seconds_max)
        gate, access = Gate(), open_to_everybody()
        doors: Any = Doors(access, gate, self.counted.memory, self.receives, self.metrics, SlowLog(10.0, 128))
        self.foreign = ForeignServices(doors, ["gpkvs.v1.KV"])
        self.handlers = Handlers([CallMetrics(self.metrics.registry), self.foreign])
        kv = KVService(access, gate, self.receives, self.metrics)
        add_service(self.handlers, kv_pb2.DESCRIPTOR.services_by_name["KV"], kv, doors)

    def start(self, path: str, *messages: bytes, keeps_open: bool = False) -> Call:
        call = Call(list(messages), keeps_open=keeps_open)
        call.context = Context(call, Opened(1, path, 1, "ipv4:127.0.0.1:5", (), None, ()))
        call.task = self.handlers.start(call.context, path)
        return call

    async def run(self, path: str, *messages: bytes, keeps_open: bool = False) -> Call:
        call = self.start(path, *messages, keeps_open=keeps_open)
        await call.task
        return call

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def asynchronous(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    run.__name__ = test.__name__
    return run


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


def test_a_method_that_a_newer_package_brings_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call() -> Call:
        return await Served().run("/grpc.health.v1.Health/Check", b"")

    monkeypatch.delitem(rights.CHECKS, "grpc.health.v1.Health.Check")  # type: ignore[arg-type] # nobody else changes it
    assert asyncio.run(call()).status == (UNIMPLEMENTED.value[0], "Method not found!", {})


@asynchronous
async def test_health_reflection_and_refusals() -> None:
    served = Served()
    check = health_pb2.HealthCheckRequest().SerializeToString()
    health = health_pb2.HealthCheckResponse
    for is_serving, status in ((False, health.NOT_SERVING), (True, health.SERVING), (False, health.NOT_SERVING)):
        await served.foreign.set_serving(is_serving)
        call = await served.run("/grpc.health.v1.Health/Check", check)
        assert call.status == (OK.value[0], "", {})
        assert health.FromString(*call.responses).status == status
    unknown = health_pb2.HealthCheckRequest(service="x").SerializeToString()
    call = await served.run("/grpc.health.v1.Health/Check", unknown)
    assert call.status == (grpc.StatusCode.NOT_FOUND.value[0], "", {})

    asked = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    call = await served.run("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", asked, asked)
    assert call.status == (OK.value[0], "", {})
    names = [reflection_pb2.ServerReflectionResponse.FromString(data) for data in call.responses]
    assert [[service.name for service in name.list_services_response.service] for name in names] == [
        ["gpkvs.v1.KV", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    ] * 2

    call = await served.run("/gpkvs.v1.KV/Get", kv_pb2.GetRequest(key=b"k").SerializeToString())
    assert call.status is not None
    assert (call.status[0], call.status[2]) == (UNAVAILABLE.value[0], {"gpkvs-executed": "no"})
    assert "recovering" in call.status[1]
    for path in ("/gpkvs.v1.KV/Nothing", "/nothing", ""):
        call = await served.run(path)
        assert call.status == (UNIMPLEMENTED.value[0], "Method not found!", {})
    labels = {"grpc_type": "unary", "grpc_service": "gpkvs.v1.KV", "grpc_method": "Get", "grpc_code": "UNAVAILABLE"}
    assert served.sample("grpc_server_handled_total", **labels) == 1
    assert served.counted.clients_bytes() == 0


@asynchronous
async def test_a_watch_until_its_client_goes_and_one_until_the_server_stops() -> None:
    served = Served()
    watch = health_pb2.HealthCheckRequest().SerializeToString()
    gone, stays = (served.start("/grpc.health.v1.Health/Watch", watch) for _ in range(2))
    await until(lambda: bool(gone.responses and stays.responses))
    gone.context.cancel()
    gone.task.cancel()
    await gone.task
    assert gone.status is None  # nobody waits for one
    assert gone.context.cancelled()
    await served.handlers.stop(0.0)
    assert stays.status == (CANCELLED.value[0], "", {})
    assert served.counted.clients_bytes() == 0
    labels = {"grpc_type": "server_stream", "grpc_service": "grpc.health.v1.Health", "grpc_method": "Watch"}
    assert served.sample("grpc_server_handled_total", **labels, grpc_code="CANCELLED") == 2


@asynchronous
async def test_a_call_that_waits_for_its_message_ends_with_the_server() -> None:
    """A health check is served all the same: it must be told that the server stops."""
    served = Served()
    waiting = served.start("/grpc.health.v1.Health/Check", keeps_open=True)
    stream = served.start("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", keeps_open=True)
    await until(lambda: len(served.receives._waiting) == 2)
    served.receives.stop(NotServingError("the server stops"))
    await asyncio.sleep(0)
    assert not waiting.task.done()
    waiting.context.arrived(health_pb2.HealthCheckRequest().SerializeToString())
    await waiting.task
    assert waiting.status == (OK.value[0], "", {})
    stream.context.half_closed()
    await stream.task
    assert stream.status == (OK.value[0], "", {})


@asynchronous
async def test_after_a_stop_only_calls_that_outlive_it_receive() -> None:
    receives = Receives(30.0)
    calls = [Context(Call([], keeps_open=True), Opened(1, "", 1, "", (), None, ())) for _ in range(4)]
    waiting = [
        asyncio.create_task(receives.read(call, is_stream=True, outlives_stop=outlives))
        for call, outlives in zip(calls, (False, True), strict=False)
    ]
    await asyncio.sleep(0)
    receives.stop(NotServingError("stopping"))
    with pytest.raises(NotServingError):
        await waiting[0]
    calls[1].arrived(b"health")
    assert await waiting[1] == b"health"
    later = asyncio.create_task(receives.read(calls[2], is_stream=False, outlives_stop=True))
    await asyncio.sleep(0)
    calls[2].arrived(b"health")
    assert await later == b"health"
    with pytest.raises(NotServingError):
        await receives.read(calls[3], is_stream=False)


@asynchronous
async def test_the_only_message_of_a_call_must_come_in_time() -> None:
    served = Served(0.05)
    stream = served.start("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", keeps_open=True)
    call = await served.run("/grpc.health.v1.Health/Check", keeps_open=True)
    text = "the message was not whole after 0.05 s (--receive-seconds-max)"
    assert call.status == (DEADLINE_EXCEEDED.value[0], text, {"gpkvs-executed": "no"})
    assert not stream.task.done()
    stream.context.half_closed()
    await stream.task


@asynchronous
async def test_a_call_whose_caller_goes_ends() -> None:
    class Gone:
        is_gone = False

        def require(self) -> None:
            if self.is_gone:
                raise LoginError("gone", "removed")

    served, caller = Served(), Gone()
    context: Any = Context(Call([], keeps_open=True), Opened(1, "", 1, "ipv4:127.0.0.1:5", (), None, ()))
    reading = asyncio.create_task(
        served.receives.read(context, caller=caller, is_stream=True)  # type: ignore[arg-type]
    )
    await asyncio.sleep(0)
    served.receives.end_gone()
    await asyncio.sleep(0)
    assert not reading.done()
    caller.is_gone = True
    served.receives.end_gone()
    assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], LoginError)
