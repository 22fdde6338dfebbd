"""Calls over the door's HTTP/2: by gRPC's own clients, and by hand where no such client would go."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.bench.door.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    PRIORITY,
    RST,
    SETTINGS,
    WINDOW,
    Frame,
    call_headers,
    frame,
    frames_of,
    headers,
    message,
)
from tests.door import probes
from tests.door.by_hand import BEGIN, Client
from tests.door.echo import FAILURE, LARGE_BYTES, MIB, TRAILERS, Echo
from tests.server.wire import trailing_of

ENHANCE_YOUR_CALM = 11


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with Echo(message_bytes_max=4 * MIB) as made:
        yield made
        wait_until(lambda: made.library.clients_bytes() == 0)  # all that calls and connections held was given back


@pytest.fixture(scope="module")
def channel(echo: Echo) -> Iterator[grpc.Channel]:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(echo.target, options=options) as made:
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "waited 10 s in vain"
        time.sleep(0.01)


def names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def goaway(frames: list[Frame]) -> tuple[int, bytes]:
    """Return the code of the GOAWAY that came, and its text."""
    (payload,) = [found.payload for found in frames if found.kind == GOAWAY]
    return int.from_bytes(payload[4:8], "big"), payload[8:]


# By a client of gRPC.


@pytest.mark.parametrize("size", [0, 1, 100, 16_379, 16_380, 16_384, 70_000, 4 * MIB])
def test_a_message_there_and_back(channel: grpc.Channel, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert channel.unary_unary("/echo/Unary")(data) == data


def test_what_python_hears_of_a_call(echo: Echo, channel: grpc.Channel) -> None:
    began = time.monotonic()
    channel.unary_unary("/echo/Unary")(
        b"x", timeout=50, metadata=[("authorization", "Bearer a: b"), ("some-bin", b"\0")]
    )
    opened = list(echo.opened.values())[-1]
    assert opened.path == "/echo/Unary"
    assert opened.peer.startswith("ipv4:127.0.0.1:")
    assert opened.certificate == ()
    assert opened.deadline is not None
    assert began + 49 < opened.deadline < time.monotonic() + 50.1
    metadata = dict(opened.metadata)
    assert metadata["authorization"] == "Bearer a: b"
    assert metadata["some-bin"].rstrip("=") == "AA"
    assert metadata["user-agent"].startswith("grpc-python/")
    assert not any(name.startswith((":", "grpc-")) or name in ("te", "content-type") for name in metadata)
    channel.unary_unary("/echo/Unary")(b"x")
    assert list(echo.opened.values())[-1].deadline is None


def test_many_messages_of_a_stream(channel: grpc.Channel) -> None:
    dice = random.Random(1)
    sent = [dice.randbytes(dice.choice((0, 10, 1000, 20_000, 100_000))) for _ in range(300)]
    assert list(channel.stream_stream("/echo/Stream")(iter(sent))) == sent


def test_a_failure_with_its_text_and_trailers(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/echo/Fail")(b"")
    error: Any = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, FAILURE)
    assert list(trailing_of(error).items()) == TRAILERS


def test_a_failure_whose_text_has_no_encoding(echo: Echo) -> None:
    known = set(echo.opened)
    with Client(echo) as client:
        client.call("/echo/Ignore", b"")
        echo.wait(lambda: len(echo.opened) > len(known))
        (call,) = set(echo.opened) - known
        echo.library.finish(call, 13, "no such file: \udcff", [])
        assert client.trailers(1)["grpc-message"] == "no such file: ?"


def test_a_message_over_the_limit(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/echo/Unary")(bytes(4 * MIB + 1))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "SERVER: Received message larger than max (4194305 vs. 4194304)"
    assert ("gpkvs-executed", "no") in error.trailing_metadata()


def test_a_message_over_the_limit_behind_others(echo: Echo) -> None:
    """Python may have executed those: nobody says that it did not."""
    with Client(echo) as client:
        client.call("/echo/Stream", message(b"x"), flags=0)
        client.wait(DATA, 1)
        client.send(frame(DATA, 0, 1, message(b"a part", size=5 * MIB)))
        trailers = client.trailers(1)
        assert trailers["grpc-status"] == "8"
        assert "gpkvs-executed" not in trailers


def test_a_compressed_message(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/echo/Unary")(bytes(1000), compression=grpc.Compression.Gzip)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == "compressed messages are not accepted: send grpc-encoding identity"
    assert trailing_of(error) == {"gpkvs-executed": "no"}


def test_a_call_that_is_given_up(echo: Echo, channel: grpc.Channel) -> None:
    known = set(echo.opened)
    call = channel.unary_unary("/echo/Hold").future(b"x")
    echo.wait(lambda: len(echo.opened) > len(known))
    (id_,) = set(echo.opened) - known
    call.cancel()
    echo.wait(lambda: id_ in echo.over)
    echo.library.respond(id_, b"too late")
    echo.library.finish(id_, 0, "", [])
    assert channel.unary_unary("/echo/Unary")(b"x") == b"x"


def test_a_deadline_that_passes(echo: Echo) -> None:
    """The door ends the call by itself; so no client of gRPC, which would do so too."""
    with Client(echo) as client:
        client.call("/echo/Hold", message(b"x"), more=[("grpc-timeout", "200m")])
        trailers = client.trailers(1)
        assert (trailers["grpc-status"], trailers["grpc-message"]) == ("4", "Deadline Exceeded")
        (id_,) = [call for call, opened in echo.opened.items() if opened.path == "/echo/Hold" and opened.deadline]
        echo.wait(lambda: id_ in echo.over)


def test_deadlines_are_noticed_at_once(echo: Echo) -> None:
    with Client(echo) as client:
        took = []
        for stream in range(1, 21, 2):
            began = time.monotonic()
            client.call("/echo/Ignore", b"", stream, flags=0, more=[("grpc-timeout", "20m")])
            assert client.trailers(stream)["grpc-status"] == "4"
            took.append(time.monotonic() - began)
        assert min(took) >= 0.02
        assert min(took) < 0.07  # whatever else the machine does: not each of ten is late


def test_calls_at_the_same_time(channel: grpc.Channel) -> None:
    large = [channel.unary_unary("/echo/Unary").future(bytes([i]) * MIB) for i in range(8)]
    small = [channel.unary_unary("/echo/Unary").future(b"%d" % i) for i in range(300)]
    assert [call.result() for call in small] == [b"%d" % i for i in range(300)]
    assert [call.result() for call in large] == [bytes([i]) * MIB for i in range(8)]


# By hand.


HTTP = [(":method", "POST"), (":scheme", "http"), (":path", "/echo/Unary"), (":authority", "a")]


@pytest.mark.parametrize(
    ("block", "status"),
    [
        pytest.param(call_headers("/echo/Unary", method="GET"), "405", id="method"),
        pytest.param(headers([*HTTP, ("content-type", "text/html")]), "415", id="type"),
        pytest.param(headers(HTTP), "415", id="no type"),
    ],
)
def test_what_is_not_grpc(echo: Echo, block: bytes, status: str) -> None:
    with Client(echo) as client:
        client.send(frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, message(b"x")))
        assert client.trailers(1) == {":status": status}


def test_two_connections_cut_at_every_byte(echo: Echo) -> None:
    """Their bytes come in turns; each gets back what it sent."""
    pad = frame(DATA, END_STREAM | 8, 5, b"\x03" + message(b"padded") + bytes(3))
    whole = [
        BEGIN
        + frame(HEADERS, END_HEADERS, 1, call_headers("/echo/Unary"))
        + frame(DATA, END_STREAM, 1, message(word))
        + frame(HEADERS, 0, 3, call_headers("/echo/Stream")[:20])
        + frame(CONTINUATION, END_HEADERS, 3, call_headers("/echo/Stream")[20:])
        + frame(DATA, 0, 3, (message(word) + message(word * 2))[:9])
        + frame(DATA, END_STREAM, 3, (message(word) + message(word * 2))[9:])
        + frame(HEADERS, END_HEADERS, 5, call_headers("/echo/Unary"))
        + pad
        for word in (b"one", b"another")
    ]
    for cut in range(1, max(map(len, whole))):
        with Client(echo, whole[0][:cut]) as first, Client(echo, whole[1][:cut]) as second:
            first.send(whole[0][cut:])
            second.send(whole[1][cut:])
            for client, word in ((first, b"one"), (second, b"another")):
                for stream in (1, 3, 5):
                    assert client.trailers(stream) == {"grpc-status": "0"}
                assert client.messages(1) == message(word)
                assert client.messages(3) == message(word) + message(word * 2)
                assert client.messages(5) == message(b"padded")


def test_a_half_message_is_none(echo: Echo) -> None:
    with Client(echo) as client:
        client.call("/echo/Unary", message(b"half", size=9))
        assert client.trailers(1)["grpc-message"] == "no message"


def test_a_client_that_never_opens_its_window(echo: Echo) -> None:
    """What it does not read is charged, and given back when it goes."""
    settings = frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4))
    with Client(echo, PREFACE + settings) as client:
        for stream in range(1, 21, 2):
            client.call("/echo/Large", b"", stream)
        end = time.monotonic() + 10
        while echo.library.held_bytes("answers") < 10 * LARGE_BYTES:
            assert time.monotonic() < end
            time.sleep(0.01)
        client.send(frame(WINDOW, 0, 1, (LARGE_BYTES + 5).to_bytes(4, "big")))
        while len(client.messages(1)) < 65_535:  # the connection's window
            client.receive()
    wait_until(lambda: echo.library.held_bytes("answers") < LARGE_BYTES)


def test_a_client_that_does_not_read_is_not_answered_ahead() -> None:
    """However wide its windows are: what its socket does not take waits in its calls, which ask for no more."""
    whole, widest = 24 * MIB, (2**31 - 1).to_bytes(4, "big")
    settings = frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + widest)
    window = frame(WINDOW, 0, 0, (2**31 - 65_536).to_bytes(4, "big"))
    with Echo(message_bytes_max=whole) as echo, Client(echo, PREFACE + settings + window) as client:
        client.call("/echo/Stream", message(b"", size=whole), flags=0)
        client.wait(WINDOW, 1)
        client.send(frame(DATA, 0, 1, bytes(16_384)) * (whole // 16_384))
        wait_until(lambda: echo.library.held_bytes("answers") >= whole)
        time.sleep(0.2)
        assert not echo.sent
        while not echo.sent:
            client.receive()


def test_responses_that_nobody_takes_by_the_deadline(echo: Echo) -> None:
    settings = frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4))
    with Client(echo, PREFACE + settings) as client:
        client.call("/echo/Large", b"", more=[("grpc-timeout", "300m")])
        wait_until(lambda: echo.library.held_bytes("answers") >= LARGE_BYTES)
        client.wait(RST, 1)
        wait_until(lambda: echo.library.held_bytes("answers") < LARGE_BYTES)


# Floods. Each would be harmless once.

OPEN = frame(HEADERS, END_HEADERS, 1, call_headers("/echo/Ignore"))
FLOODS = {
    "settings": [frame(SETTINGS, 0, 0)] * 2_000,
    "acks": [frame(PING, ACK, 0, bytes(8))] * 20_000,
    "priorities": [frame(PRIORITY, 0, 1, bytes(5))] * 20_000,
    "windows": [frame(WINDOW, 0, 0, (1).to_bytes(4, "big"))] * 20_000,
    "empty data": [OPEN, *[frame(DATA, 0, 1)] * 20_000],
    "resets": [
        part
        for stream in range(1, 4_001, 2)
        for part in (frame(HEADERS, END_HEADERS, stream, call_headers("/echo/Ignore")), frame(RST, 0, stream, bytes(4)))
    ],
    "pings": [frame(PING, 0, 0, bytes(8))] * 5,
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_ends_the_connection(echo: Echo, kind: str) -> None:
    with Client(echo) as client:
        with contextlib.suppress(OSError):
            client.send(b"".join(FLOODS[kind]))
        code, text = goaway(client.wait_end())
        assert code == ENHANCE_YOUR_CALM
        assert text == {"pings": b"too_many_pings", "resets": b"too many resets"}.get(kind, b"too many frames")


def test_a_client_may_ping_while_it_is_answered(echo: Echo) -> None:
    with Client(echo) as client:
        for stream in range(1, 41, 2):
            client.send(frame(PING, 0, 0, bytes(8)))
            client.call("/echo/Unary", message(b"x"), stream)
            client.wait(HEADERS, stream, flags=END_STREAM)
        assert not [found for found in frames_of(client.received) if found.kind == GOAWAY]


def test_too_many_headers(echo: Echo) -> None:
    with Client(echo) as client:
        block = call_headers("/echo/Unary", [(f"a{i}", "b" * 1000) for i in range(17)])
        client.send(
            frame(HEADERS, 0, 1, block[:16_000])
            + frame(CONTINUATION, END_HEADERS, 1, block[16_000:])
            + frame(DATA, END_STREAM, 1, message(b"x"))
        )
        assert client.trailers(1)["grpc-message"].startswith("received metadata size exceeds hard limit (1")
        # One header that was sent once and is named again and again.
        bomb = b"\x40\x01a\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 12_000
        client.send(frame(HEADERS, END_HEADERS, 3, call_headers("/echo/Unary") + bomb))
        client.wait(RST, 3)
        assert not [
            found for found in frames_of(client.received) if found[0:3:2] == (HEADERS, 3)
        ]  # it is not read to its end
        client.call("/echo/Unary", message(b"y"), 5)
        client.wait(HEADERS, 5, flags=END_STREAM)
        assert client.messages(5) == message(b"y")


def test_a_block_of_headers_without_an_end(echo: Echo) -> None:
    with Client(echo) as client:
        with contextlib.suppress(OSError):
            client.send(frame(HEADERS, 0, 1, call_headers("/echo/Unary")) + frame(CONTINUATION, 0, 1, b"") * 1000)
        client.wait_end()


def test_more_streams_than_allowed(echo: Echo) -> None:
    with Client(echo) as client:
        client.wait(SETTINGS)
        client.send(frame(SETTINGS, ACK, 0))
        for stream in range(1, 201, 2):
            client.send(frame(HEADERS, END_HEADERS, stream, call_headers("/echo/Ignore")))
        client.send(frame(PING, 0, 0, bytes(8)))
        client.wait(PING, flags=ACK)
        client.send(frame(HEADERS, END_HEADERS, 201, call_headers("/echo/Ignore")))
        assert goaway(client.wait_end())[0]


def test_a_message_flows_when_it_is_charged(echo: Echo) -> None:
    """A client that has not said how long its message is may send a window, then it must wait."""
    with Client(echo) as client:
        client.wait(SETTINGS)
        client.send(frame(SETTINGS, ACK, 0) + frame(HEADERS, END_HEADERS, 1, call_headers("/echo/Ignore")))
        client.send(frame(DATA, 0, 1, bytes(16_384)))
        client.send(frame(DATA, 0, 1, b"x"))
        client.wait(RST, 1)
        assert not [found for found in frames_of(client.received) if found[0:3:2] == (WINDOW, 1)]


@pytest.mark.parametrize("early", [16_384, 40_000])
def test_a_message_goes_on_when_the_client_knows_of_the_windows(echo: Echo, early: int) -> None:
    """The first streams begin with the windows of the standard; the acknowledged settings take most of them away."""
    whole = message(bytes(60_000))

    def data(begin: int, end: int) -> bytes:
        return b"".join(frame(DATA, 0, 1, whole[at : min(at + 16_384, end)]) for at in range(begin, end, 16_384))

    with Client(echo) as client:
        client.wait(SETTINGS)
        client.send(frame(HEADERS, END_HEADERS, 1, call_headers("/echo/Unary")) + data(0, early))
        time.sleep(0.2)  # it is asked for meanwhile
        client.send(frame(SETTINGS, ACK, 0))
        opened = client.wait(WINDOW, 1)
        assert int.from_bytes(opened.payload, "big") >= len(whole) - 16_384
        client.send(data(early, len(whole)) + frame(DATA, END_STREAM, 1, b""))
        assert client.trailers(1)["grpc-status"] == "0"


def test_a_connection_may_hold_as_much_as_it_leaves_free() -> None:
    with Echo(memory_bytes_max=64 * MIB) as echo:
        with Client(echo) as client:
            for stream in range(1, 201, 2):
                client.call("/echo/Hold", message(b"", size=900_000), stream, flags=0)
            refused = client.trailers(199)
            assert refused["grpc-status"] == "8"
            assert refused["grpc-message"].startswith("memory full: this connection holds ")
            assert (refused["gpkvs-executed"], refused["gpkvs-full"]) == ("no", "memory")
            held_max = echo.bounds.clients_bytes_max // 2 // 900_000
            while (held := 100 - sum(found.kind == HEADERS for found in frames_of(client.received))) > held_max:
                assert client.receive()  # refusals have no order
            assert held >= 3
            # The others go on, and what one of them held is free again.
            client.send(frame(RST, 0, 3, bytes(4)) + frame(DATA, 0, 1, bytes(16_000)))
            client.call("/echo/Unary", message(b"little"), 201)
            client.wait(HEADERS, 201, flags=END_STREAM)
            assert client.messages(201) == message(b"little")
            with Client(echo) as other:
                other.call("/echo/Hold", message(b"", size=1_000_000), 1, flags=0)
                other.call("/echo/Unary", message(b"little"), 3)
                assert other.trailers(3) == {"grpc-status": "0"}
                assert not [found for found in frames_of(other.received) if found[0:3:2] == (HEADERS, 1)]
        wait_until(lambda: echo.library.clients_bytes() == 0)


def test_what_python_holds_is_counted_too() -> None:
    with Echo() as echo:
        library = echo.library
        with Client(echo) as client:
            client.call("/echo/Hold", message(b"x"))
            echo.wait(lambda: len(echo.opened) == 1)
            (opened,) = echo.opened.values()
            library.charge(opened.connection, "requests", 1000)
            library.charge(opened.connection, "requests", -100)
            wait_until(lambda: library.held_bytes("requests") == 900)
            library.charge(0, "batch", 70)
            assert library.held_bytes("batch") == 70
        wait_until(lambda: library.clients_bytes() == 0)  # the connection has ended
        library.charge(opened.connection, "requests", -900)
        library.charge(0, "batch", -70)
        assert (library.held_bytes("requests"), library.held_bytes("batch")) == (0, 0)


def test_a_drain_lets_calls_end(echo: Echo) -> None:
    with Echo() as other, Client(other) as client, Client(other) as idle:
        client.call("/echo/Hold", message(b"x"))
        other.wait(lambda: bool(other.opened))
        idle.wait(SETTINGS)
        other.library.drain()
        first = client.wait(GOAWAY)
        assert int.from_bytes(first.payload[:4], "big") == (1 << 31) - 1
        # A call that was under way.
        client.call("/echo/Unary", message(b"y"), 3)
        client.send(frame(PING, ACK, 0, client.wait(PING).payload))
        client.wait(HEADERS, 3, flags=END_STREAM)
        assert client.messages(3) == message(b"y")
        (held,) = [call for call, opened in other.opened.items() if opened.path == "/echo/Hold"]
        other.library.respond(held, b"z")
        other.library.finish(held, 0, "", [])
        frames = client.wait_end()
        assert client.messages(1) == message(b"z")
        last = [found for found in frames if found.kind == GOAWAY][-1]
        assert int.from_bytes(last.payload[:4], "big") == 3
        idle.send(frame(PING, ACK, 0, idle.wait(PING).payload))
        idle.wait_end()


def test_after_a_drain_a_client_may_still_send(echo: Echo) -> None:
    """It closes its side when it has read the end; whoever sends to a closed socket loses what it has not read."""
    with Echo() as other, Client(other) as client:
        client.call("/echo/Hold", message(b"x"))
        other.wait(lambda: bool(other.opened))
        other.library.drain()
        client.send(frame(PING, ACK, 0, client.wait(PING).payload))
        other.library.respond(next(iter(other.opened)), b"z")
        other.library.finish(next(iter(other.opened)), 0, "", [])
        client.wait_end()
        for _ in range(10):
            client.send(frame(PING, 0, 0, bytes(8)))
            time.sleep(0.02)
        wait_until(lambda: is_refused(client))  # it does not wait for ever


def is_refused(client: Client) -> bool:
    """Return whether the door has closed its socket."""
    try:
        client.send(frame(PING, 0, 0, bytes(8)))
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


def test_a_process_that_may_open_no_more_files() -> None:
    """Clients are refused; where not even that can be done, they wait, and cost nothing."""
    with Echo() as echo, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(4)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, names("/proc/self/fd"))) + 9, hard))
        files = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    files.append(os.open("/dev/null", os.O_RDONLY))
            os.close(files.pop())
            port = echo.library.listen("127.0.0.1", 0)
            began = time.process_time()
            for client in clients[:3]:
                client.connect(("127.0.0.1", port))
            time.sleep(0.3)
            assert time.process_time() - began < 0.1
            os.close(files.pop())
            for client in clients[:3]:
                client.settimeout(10)
                assert b"as many open files as it may" in client.recv(1000)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for file in files:
                os.close(file)
        clients[3].connect(("127.0.0.1", port))
        clients[3].sendall(BEGIN)
        assert clients[3].recv(1)


def test_the_doors_threads_leave_signals_to_python() -> None:
    def blocked(thread: str) -> int:
        return int(Path(f"/proc/self/task/{thread}/status").read_text().partition("SigBlk:")[2].split()[0], 16)

    def masks_of_the_door() -> list[int]:
        # Those of gRPC's client come and go; they block all, as a thread does that begins.
        masks = filter(None, map(blocked, names("/proc/self/task") - before))
        return [mask for mask in masks if not mask >> signal.SIGBUS - 1 & 1]

    before = names("/proc/self/task")
    with Echo():
        wait_until(lambda: len(masks_of_the_door()) >= 2)
        doors = masks_of_the_door()
    assert all(mask >> signal.SIGTERM - 1 & mask >> signal.SIGINT - 1 & 1 for mask in doors)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_clients_that_stand_still() -> None:
    """The door waits 10 s for one that says nothing, for headers without an end, and for the rest of a message."""
    with Echo(receive_seconds_max=600.0) as echo:
        probes.hurry(echo.library._door, 10)
        began = time.monotonic()
        silent = [
            Client(echo, begin) for begin in (b"", PREFACE, BEGIN + frame(HEADERS, 0, 1, call_headers("/echo/Unary")))
        ]
        with Client(echo) as slow:
            slow.call("/echo/Unary", message(b"a part", size=100), flags=0)
            assert slow.trailers(1)["grpc-message"] == "no byte of the message came for 10 s"
            slow.call("/echo/Unary", message(b"x"), 3)
            slow.wait(HEADERS, 3, flags=END_STREAM)
        for client in silent:
            with client:
                client.wait_end()
        assert 0.9 < time.monotonic() - began < 50


def test_headers_without_an_end_beside_a_call_that_ends() -> None:
    with Echo() as echo:
        probes.hurry(echo.library._door, 10)
        with Client(echo) as client:
            client.call("/echo/Hold", message(b"x"))
            echo.wait(lambda: len(echo.opened) == 1)
            began = time.monotonic()
            client.send(frame(HEADERS, 0, 3, call_headers("/echo/Unary")))
            time.sleep(0.2)
            echo.library.finish(*echo.opened, 0, "", [])
            client.wait_end()
            assert time.monotonic() - began < 4


def test_a_message_that_is_late_for_its_call(echo: Echo) -> None:
    """A stream may take as long as it likes between its messages."""
    with Client(echo) as client:
        client.send(frame(HEADERS, END_HEADERS, 1, call_headers("/echo/Stream")))
        for part in (b"\0", b"\0\0\0", b"\1x"):
            time.sleep(0.3)
            client.send(frame(DATA, 0, 1, part))
        client.wait(DATA, 1)


def test_a_client_that_is_silent_is_asked_whether_it_is_there() -> None:
    with Echo() as echo:
        probes.hurry(echo.library._door, 100)
        began = time.monotonic()
        with Client(echo) as there, Client(echo) as gone:
            for _ in range(3):
                there.send(frame(PING, ACK, 0, there.wait(PING).payload))
                there.received = b""
            assert PING in {found.kind for found in gone.wait_end()}
            assert 0.7 < time.monotonic() - began < 8
            there.call("/echo/Unary", message(b"x"))
            there.wait(HEADERS, 1, flags=END_STREAM)
