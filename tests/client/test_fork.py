"""Clients and forks: what was opened before one says so in the child, and the child ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import Server

CHILD_SECONDS_MAX = 30  # only a child that hangs takes so long

# gRPC says this when one of its own threads is inside it at the moment of the fork. The child may then crash in gRPC,
# before any code of ours runs in it (one fork in five here; README says so). Such a fork shows nothing about us.
BUSY = "Other threads are currently calling into gRPC"
TRIES = 10

# Forks; the child tries every method and the end of the interpreter.
SCRIPT = """
import asyncio, gc, json, os, signal, sys
import numpy as np, uvloop
from gpkvs.batch import Batch, Op
from gpkvs.client import AsyncClient, Client, ForkedError

kind, target, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
keys = np.arange(3, dtype=np.uint64)
batch = Batch.of([(Op.GET, b"k")])

def calls(client):
    yield "get", lambda: client.get(b"k")
    yield "set", lambda: client.set(b"k", b"v")
    yield "delete", lambda: client.delete(b"k")
    yield "get_with_version", lambda: client.get_with_version(b"k")
    yield "get_all", lambda: client.get_all([])
    yield "exists", lambda: client.exists(b"k")
    yield "incr", lambda: client.incr(b"k")
    yield "append", lambda: client.append(b"k", b"v")
    yield "expire", lambda: client.expire(b"k", 1)
    yield "ttl", lambda: client.ttl(b"k")
    yield "table", lambda: client.table("t")
    yield "transaction", lambda: client.transaction()
    yield "transact", lambda: client.transact(lambda t: t.get(b"k"))
    yield "scan", lambda: client.scan()
    yield "count", lambda: client.count()
    yield "watch", lambda: client.watch()
    yield "follow", lambda: client.follow()
    yield "incr_many", lambda: client.incr_many(keys)
    yield "wait_ready", lambda: client.wait_ready()
    yield "info", lambda: client.info()
    yield "batch", lambda: client.batch([(Op.GET, b"k")])
    yield "batch of none", lambda: client.batch([])
    yield "execute", lambda: client.execute(batch)
    yield "set_from", lambda: client.set_from(b"k", b"v")
    yield "get_into", lambda: client.get_into(b"k", bytearray(1))
    yield "set_many", lambda: client.set_many(keys, keys)
    yield "get_many", lambda: client.get_many(keys)
    yield "delete_many", lambda: client.delete_many(keys)
    yield "create_table", lambda: client.create_table("t")
    yield "list_tables", lambda: client.list_tables()
    yield "drop_table", lambda: client.drop_table("t")

def wrong(name, error):
    return [] if type(error) is ForkedError else [f"{name}: {error!r}"]

def outcome(call):
    try:
        result = call()
        if asyncio.iscoroutine(result):
            result.send(None)  # no loop runs in the child: whoever raises at once needs none
    except BaseException as error:
        return error

def fork():
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
    return child

def end(child):
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

def blocking():
    with Client(target) as client:
        client.set(b"k", b"v")
        if (child := fork()) == 0:
            bad = [text for name, call in calls(client) for text in wrong(name, outcome(call))]
            bad += wrong("info", outcome(client.info))
            client.close()
            with Client(target) as own:
                assert own.get(b"k") == b"v"
            print(json.dumps(bad), flush=True)
            sys.exit(7)
        end(child)
        print(client.get(b"k") == b"v")

async def asynchronous():
    async with AsyncClient(target) as client, client.pipeline() as pipeline:
        await client.set(b"k", b"v")
        await (await pipeline.send(batch))
        if (child := fork()) == 0:
            bad = [text for name, call in calls(client) for text in wrong(name, outcome(call))]
            bad += wrong("wait_ready", outcome(client.wait_ready))
            bad += wrong("pipeline", outcome(client.pipeline))
            bad += wrong("send", outcome(lambda: pipeline.send(batch)))
            bad += wrong("results", outcome(lambda: anext(pipeline.results([batch])).__await__().send(None)))
            bad += wrong("another", outcome(lambda: AsyncClient(target)))
            await pipeline.close()
            await client.close()
            print(json.dumps(bad), flush=True)
            gc.collect()
            os._exit(7)  # as multiprocessing ends a child; the event loop is the parent's
        end(child)
        print(await client.get(b"k") == b"v")

if kind == "blocking":
    blocking()
else:
    {"asyncio": asyncio.run, "uvloop": uvloop.run}[kind](asynchronous())
"""


@pytest.mark.parametrize("kind", ["blocking", "asyncio", "uvloop"])
def test_every_method_says_that_the_client_is_the_parents(server: Server, kind: str) -> None:
    run = _forked(SCRIPT, kind, server.target)
    assert run.stdout.splitlines() == ["[]", "7", "True"], run.stderr


def _forked(script: str, kind: str, target: str) -> subprocess.CompletedProcess[str]:
    """Run a script that forks, again if gRPC crashed in the child."""
    arguments = [sys.executable, "-c", script, kind, target, str(CHILD_SECONDS_MAX)]
    environment = {**os.environ, "GRPC_VERBOSITY": "INFO"}  # as usual: BUSY is of that level
    for _ in range(TRIES):
        run = subprocess.run(
            arguments, capture_output=True, text=True, timeout=2 * CHILD_SECONDS_MAX, check=False, env=environment
        )
        # It may die before the end of its line.
        if not (any(line.endswith(("-11", "-6")) for line in run.stdout.splitlines()) and BUSY in run.stderr):
            break
    return run


# Forks while another thread has the locks of a watch: that of gRPC for its stream, and our own. So at times have the
# thread that reads for it, and those of gRPC.
WATCHING = """
import asyncio, gc, os, signal, sys, threading
from gpkvs.client import AsyncClient, Client

kind, target, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])

def end(child):
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

def fork():
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
    return child

def blocking():
    with Client(target) as client, client.follow() as following:
        held, forked = threading.Event(), threading.Event()
        def hold(arrivals):
            with arrivals._stream._state.condition, arrivals._changed:
                held.set()
                forked.wait()
        holder = threading.Thread(target=hold, args=(following._arrivals,))
        holder.start()
        held.wait()
        if (child := fork()) == 0:
            with following:
                following.close()
            del following
            gc.collect()
            os._exit(7)
        forked.set()
        holder.join()
        end(child)
        client.set(b"k", b"v")
        print(following.read(timeout=seconds)[0].key_list())

async def asynchronous():
    async with AsyncClient(target) as client, await client.follow() as following:
        await following.read(timeout=0.01)
        if (child := fork()) == 0:
            async with following:
                await following.close()
            os._exit(7)
        end(child)
        await client.set(b"k", b"v")
        print((await following.read(timeout=seconds))[0].key_list())

if kind == "blocking":
    blocking()
else:
    asyncio.run(asynchronous())
"""


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_who_closes_a_watch_of_the_parent_does_not_wait(server: Server, kind: str) -> None:
    run = _forked(WATCHING, kind, server.target)
    assert run.stdout.splitlines() == ["7", "[b'k']"], run.stderr


# As an application has it; the start method is the first argument.
APPLICATION = """
import multiprocessing
import sys

from gpkvs.client import Client, ForkedError

client = None


def work(target, key, results):
    try:
        client.get(key)
    except (AttributeError, ForkedError) as error:  # spawned: None, forked: the parent's
        results.put(type(error).__name__)
    with Client(target) as own:
        results.put(own.get(key))


def main():
    global client
    method, target = sys.argv[1:]
    context = multiprocessing.get_context(method)
    results = context.Queue()
    with Client(target) as client:
        client.set(b"k", b"v")
        child = context.Process(target=work, args=(target, b"k", results))
        child.start()
        print(results.get(timeout=30), results.get(timeout=30))
        child.join(30)
        print(child.exitcode, client.get(b"k"))


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("method", "error"), [("fork", "ForkedError"), ("spawn", "AttributeError")])
def test_multiprocessing(server: Server, tmp_path: Path, method: str, error: str) -> None:
    script = tmp_path / "application.py"
    script.write_text(APPLICATION)
    run = subprocess.run(
        [sys.executable, script, method, server.target], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.splitlines() == [f"{error} b'v'", "0 b'v'"], run.stderr
