"""The first call of a connection that shows a login: the native door asks who makes it, and serves it as any other."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpkvs.config import MIB
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.access.users import make_token
from tests.accounts import Account, Accounts, Header, basic, bearer
from tests.door.blob_door import wait_for
from tests.server.access.guarded import Guarded
from tests.server.wire import GET, SET, Refused, batch, values_of

SIZE = 100 * MIB
PASSWORD = "correct horse"
WRONG = "wrong user, password or token"
OPTIONS = ("--format", "4", "--durability", "process", "--heap-bytes", "64MiB", "--heap-bytes-max", "1GiB")


class Place(Guarded):
    """A server with users and large values."""

    def __init__(self, folder: Path) -> None:
        accounts = Accounts(
            folder / "users.toml",
            root=Account(admin=("*",)),
            alice=Account(password=PASSWORD, read=("*",), write=("*",)),
            reader=Account(read=("*",)),
        )
        self.audit_log = folder / "audit.log"
        super().__init__(accounts, folder, *OPTIONS, "--audit-log", str(self.audit_log))
        self.value = random.Random(1).randbytes(MIB) * (SIZE // MIB)
        self.get(*basic("alice", PASSWORD))  # it is known from now on, however often others fail

    @contextmanager
    def fresh(self) -> Iterator[kv_pb2_grpc.KVStub]:
        """Make a connection."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(self.server.target, options) as channel:
            yield kv_pb2_grpc.KVStub(channel)

    def calls(self, method: str) -> dict[str, float]:
        """Return how often calls of a method began, and how they ended."""
        found: dict[str, float] = {}
        for sample in self.server.samples():
            if sample.labels.get("grpc_method") != method:
                continue
            if sample.name == "grpc_server_started_total":
                found["started"] = found.get("started", 0) + sample.value
            elif sample.name == "grpc_server_handled_total" and sample.value:
                code = sample.labels["grpc_code"]
                found[code] = found.get(code, 0) + sample.value
            elif sample.name == "grpc_server_handling_seconds_count":
                found["timed"] = found.get("timed", 0) + sample.value
        return found

    def grown(self, method: str, before: dict[str, float]) -> dict[str, float]:
        """Return what is more than before."""
        return {
            name: count - before.get(name, 0)
            for name, count in self.calls(method).items()
            if count != before.get(name, 0)
        }

    def own_bytes(self) -> int:
        """Return the memory of the process that is no file's."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        [own] = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
        return int(own) << 10

    @contextmanager
    def grows_by(self, size_max: int) -> Iterator[None]:
        """Fail if this memory grows by more, at any moment until this is left."""
        most, is_over, before = 0, threading.Event(), self.own_bytes()

        def look() -> None:
            nonlocal most
            while not is_over.wait(0.005):
                most = max(most, self.own_bytes())

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield
        finally:
            is_over.set()
            looking.join()
        assert most < before + size_max

    def refusals(self) -> list[dict[str, str]]:
        """Return those that are noted."""
        lines = [json.loads(line) for line in self.audit_log.read_text().splitlines()]
        return [line for line in lines if line["event"] == "refused"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("first-calls"))
    yield made
    made.close()


def header_of(place: Place, how: str) -> Header:
    return place.headers["alice"] if how == "token" else basic("alice", PASSWORD)


@pytest.mark.parametrize("how", ["token", "password"])
def test_a_value_larger_than_a_message_comes_and_goes_with_a_first_call(place: Place, how: str) -> None:
    header = header_of(place, how)
    with place.fresh() as kv:
        assert kv.Set(kv_pb2.SetRequest(key=b"k", value=place.value), metadata=header).status == kv_pb2.STATUS_OK
    with place.fresh() as kv:
        assert kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=header).value == place.value
    with place.fresh() as kv:
        [answered] = kv.Pipeline(iter([batch([(SET, b"k", place.value[1:])])]), metadata=header)
        assert answered.code == 0
    with place.fresh() as kv:
        assert values_of(kv.Batch(batch([(GET, b"k")]), metadata=header)) == [place.value[1:]]
    with place.fresh() as kv:
        kv.Batch(batch([(SET, b"k", place.value[2:])]), metadata=header)
    with place.fresh() as kv:
        [answered] = kv.Pipeline(iter([batch([(GET, b"k")])]), metadata=header)
        assert values_of(answered) == [place.value[2:]]
    with place.fresh() as kv:
        assert kv.Delete(kv_pb2.DeleteRequest(key=b"k"), metadata=header).found
    wait_for(lambda: place.server.metric("gpkvs_memory_bytes", kind="requests") == 0)


@pytest.mark.parametrize(
    ("header", "size_max"),
    [(bearer(make_token()[0]), 16 * MIB), (basic("alice", "wrong"), 96 * MIB), ((), 16 * MIB)],
    ids=["token", "password", "nothing"],
)
def test_whoever_does_not_log_in_sends_nothing_large(place: Place, header: Header, size_max: int) -> None:
    """The server's memory grows by the check of a password alone, and no room of the store is taken."""
    text = WRONG if header else "log in: send a token"
    before, noted = place.calls("Set"), len(place.refusals())
    with place.grows_by(size_max):
        with place.fresh() as kv, Refused(grpc.StatusCode.UNAUTHENTICATED, text):
            kv.Set(kv_pb2.SetRequest(key=b"k", value=place.value), metadata=header)
        with place.fresh() as kv, Refused(grpc.StatusCode.UNAUTHENTICATED, text):
            next(kv.Pipeline(iter([batch([(SET, b"k", place.value)])]), metadata=header))
    assert place.grown("Set", before) == {"started": 1, "UNAUTHENTICATED": 1, "timed": 1}
    assert place.server.metric("gpkvs_blobs_live_bytes") == 0
    wait_for(lambda: {line["rpc"] for line in place.refusals()[noted:]} == {"gpkvs.v1.KV.Set", "gpkvs.v1.KV.Pipeline"})


def test_many_who_do_not_log_in(place: Place) -> None:
    """Each connection has a large message to send, all at the same time."""
    count, before = 24, place.calls("Set")
    logins = place.server.metric("gpkvs_logins_total", method="token", result="refused")
    request = kv_pb2.SetRequest(key=b"k", value=place.value[: 50 * MIB])

    def ask(_: int) -> None:
        with place.fresh() as kv, Refused(grpc.StatusCode.UNAUTHENTICATED, WRONG):
            kv.Set(request, metadata=bearer(make_token()[0]))

    with place.grows_by(32 * MIB), ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(count)))
    assert place.grown("Set", before) == {"started": count, "UNAUTHENTICATED": count, "timed": count}
    assert place.server.metric("gpkvs_logins_total", method="token", result="refused") == logins + count
    assert place.server.metric("gpkvs_memory_bytes", kind="requests") == 0


def test_failed_passwords_slow_down_as_ever(place: Place) -> None:
    texts = []
    for number in range(5):  # after the third at the latest
        with place.fresh() as kv, pytest.raises(grpc.RpcError) as caught:
            kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=basic("nobody", f"guess {number}"))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        texts.append(caught.value.details().split(",")[0])
    assert texts[-1] == "too many failed logins"
    wait_for(lambda: any(line["reason"] == "slowed" for line in place.refusals()))


def test_a_right_that_is_missing(place: Place) -> None:
    """Where the message would be taken, Python says what is missing; no room of the store is taken for it."""
    header, before = place.headers["reader"], place.calls("Set")
    with (
        place.fresh() as kv,
        Refused(grpc.StatusCode.PERMISSION_DENIED, "user reader may not write table 'default'"),
    ):
        kv.Set(kv_pb2.SetRequest(key=b"k", value=bytes(20 * MIB)), metadata=header)
    assert place.grown("Set", before) == {"started": 1, "PERMISSION_DENIED": 1, "timed": 1}
    with place.fresh() as kv, Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"):
        kv.Set(kv_pb2.SetRequest(key=b"k", value=place.value), metadata=header)
    assert place.server.metric("gpkvs_blobs_live_bytes") == 0
    with place.fresh() as kv:
        assert not kv.Get(kv_pb2.GetRequest(key=b"nothing"), metadata=header).found


@pytest.mark.parametrize("how", ["token", "password"])
def test_each_call_counts_once(place: Place, how: str) -> None:
    header = header_of(place, how)
    logins = place.server.metric("gpkvs_logins_total", result="ok")
    before = {method: place.calls(method) for method in ("Get", "Set", "Batch", "Pipeline")}
    for _ in range(3):
        with place.fresh() as kv:
            kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=header)
            kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=header)
        with place.fresh() as kv:
            kv.Set(kv_pb2.SetRequest(key=b"small"), metadata=header)
        with place.fresh() as kv:
            kv.Batch(batch([(GET, b"k")]), metadata=header)
        with place.fresh() as kv:
            assert len(list(kv.Pipeline(iter([batch([(GET, b"k")])] * 2), metadata=header))) == 2
    for method, count in (("Get", 6), ("Set", 3), ("Batch", 3), ("Pipeline", 3)):
        assert place.grown(method, before[method]) == {"started": count, "OK": count, "timed": count}
    assert place.server.metric("gpkvs_logins_total", result="ok") == logins + 12, "one of each connection"
