"""Starting, stopping, and everything that can keep a server from starting."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import gpkvs
from gpkvs.bench.door.frames import PING, PREFACE, SETTINGS, frame
from gpkvs.errors import GpkvsError
from gpkvs.info import package_version
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.server.app import _write_whole
from tests.server.wire import SET, batch
from tests.serving import COMMAND, WITHOUT_ROOT_RIGHTS, Server, StartServer, error_line, run_gpkvs

pytestmark = pytest.mark.own_python

ANY_PORT = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")


@pytest.mark.format3
def test_ready_file_and_log_name_the_addresses(server: Server) -> None:
    log = server.log.read_text()
    for address in (server.target, server.metrics_address):
        assert address in log
        assert not address.endswith(":0")
    assert str(server.data) in log
    assert "persistence domain" in log
    assert f"gpkvs {package_version()}, process {server.process.pid}, " in log
    assert re.search(r"created, \d\d MiB reserved", log)
    assert "0 records in 1 table, heap 0.0 of 16 MiB, backend cpu" in log
    assert re.search(r"batches commit by an? (undo log|journal) of \d+ MiB", log)
    assert re.search(
        r"limits: key 4,096 B, value 1,044,448 B, \d\d,\d+ operations a request, message 67,108,864 B", log
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_under_load(server: Server, number: int) -> None:
    """Every call gets a response and is durable then, or has failed; the server exits 0, and soon."""
    acknowledged: list[bytes] = []
    failed: list[grpc.RpcError] = []

    def write(name: int) -> None:
        for i in range(1_000_000):
            keys = [b"%d-%d-%d" % (name, i, j) for j in range(name)]
            try:
                response = server.kv.Batch(batch([(SET, key, key) for key in keys]))
            except grpc.RpcError as error:
                failed.append(error)
                return
            assert response.status == bytes(len(keys))
            acknowledged.extend(keys)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(1, 9)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    server.stop(number)
    assert time.monotonic() - began < 10
    for thread in threads:
        thread.join(10)
    assert len(failed) == len(threads)
    assert {error.code() for error in failed} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert len(acknowledged) > 100
    with gpkvs.open(server.data) as store:
        assert all(store.get(key) == key for key in acknowledged)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_repeat_do_not_change_the_exit_status(start_server: StartServer, number: int) -> None:
    """A second SIGTERM after the store was closed killed the process: its status said that it had failed."""
    server = start_server()
    while server.process.poll() is None:
        server.process.send_signal(number)
        time.sleep(0.0005)
    assert server.process.returncode == 0


def test_accepted_work_gets_its_response_when_stopped(server: Server) -> None:
    """A request that is in the engine when the signal comes is finished, not dropped."""
    count = 20_000
    request = kv_pb2.BatchRequest(
        ops=bytes([SET]) * count, keys=b"".join(b"%08d" % i for i in range(count)), key_size=8
    )
    response = server.kv.Batch.future(request)
    while server.metric("grpc_server_started_total", grpc_method="Batch") == 0:
        time.sleep(0.001)
    server.stop()
    assert response.result().status == bytes(count)


def test_time_to_finish_is_bounded(start_server: StartServer) -> None:
    """What still waits then is dropped; the transaction in progress commits, and the exit is in order."""
    server = start_server("--drain-seconds-max", "0", "--batch-ops-max", "1")
    # All of them take many times as long as to send them, and as it takes the server to hear of its end.
    filler = [(SET, b"filler %d" % i, b"") for i in range(10_000)]
    messages = [batch([(SET, b"%d" % i, b""), *filler]) for i in range(400)]
    calls = [server.kv.Batch.future(message) for message in messages]
    calls[0].result()
    server.stop()
    done = [i for i, call in enumerate(calls) if call.exception() is None]
    assert len(done) < len(calls)
    assert "still waiting after 0 s" in server.log.read_text()
    with gpkvs.open(server.data) as store:
        assert all(store.get(b"%d" % i) == b"" for i in done)


def test_a_client_that_does_not_hear_of_the_end(start_server: StartServer) -> None:
    """It answers no PING, so the server cannot know which of its calls are still to come.

    The server answers its PING: so the connection is one that has begun. Others are closed at once.
    """
    server = start_server("--drain-seconds-max", "1.5")
    host, port = server.target.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(PING, 0, 0, b"has come"))
        heard = b""
        while b"has come" not in heard:
            heard += (received := client.recv(4096))
            assert received
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4.5
    assert "stopping: waits for " in server.log.read_text()


def test_a_server_that_stops_says_so(server: Server, tmp_path: Path) -> None:
    """To whoever asks its health, reads its metrics or looks for its ready file, while it still ends its streams."""
    watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert server.metric("gpkvs_serving") == 1
    assert (tmp_path / "ready").exists()
    server.process.send_signal(signal.SIGTERM)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert server.metric("gpkvs_serving") == 0
    assert not (tmp_path / "ready").exists()
    watch.cancel()


def test_a_second_process_on_one_directory_names_the_first(server: Server) -> None:
    data, new = str(server.data), str(server.data.parent / "new")
    for command in (("serve", "--data", data, *ANY_PORT), ("check", data), ("recover", data), ("copy", data, new)):
        line = error_line(run_gpkvs(*command), 3)
        assert data in line
        assert f"process {server.process.pid}" in line
    assert not server.kv.Get(kv_pb2.GetRequest(key=b"k")).found  # the first one goes on


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_port_in_use(server: Server, tmp_path: Path, option: str) -> None:
    """Also where another gpkvs has it: two servers must never share a port."""
    taken = server.target if option == "--listen" else server.metrics_address
    addresses = {"--listen": "127.0.0.1:0", "--metrics": "127.0.0.1:0", option: taken}
    other = tmp_path / "other"
    result = run_gpkvs("serve", "--data", str(other), *(word for pair in addresses.items() for word in pair))
    line = error_line(result, 1)
    assert f"cannot listen on {taken} ({option[2:]}): Address already in use" in line
    assert not other.exists()


def test_bad_address(tmp_path: Path) -> None:
    line = error_line(run_gpkvs("serve", "--data", str(tmp_path / "store"), "--listen", "nonsense"), 2)
    assert "listen: 'nonsense' is not HOST:PORT" in line
    assert not (tmp_path / "store").exists()


def test_address_of_another_machine(tmp_path: Path) -> None:
    result = run_gpkvs("serve", "--data", str(tmp_path / "store"), "--listen", "192.0.2.1:7171", "--insecure-listen")
    assert "cannot listen on 192.0.2.1:7171 (listen): Cannot assign requested address" in error_line(result, 1)


@pytest.mark.machine
def test_ipv6(start_server: StartServer) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    server = start_server("--listen", "[::1]:0", "--metrics", "[::1]:0")
    assert server.target.startswith("[::1]:")
    server.kv.Set(kv_pb2.SetRequest(key=b"k"))
    assert server.metric("gpkvs_serving") == 1


def test_no_write_permission(tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(0o555)
    for data in (folder, folder / "store"):
        result = subprocess.run(
            [sys.executable, "-c", WITHOUT_ROOT_RIGHTS, *COMMAND, "serve", "--data", str(data), *ANY_PORT],
            capture_output=True,
            timeout=60,
            check=False,
        )
        line = error_line(result, 1)
        assert str(data) in line
        assert "ermission denied" in line
    assert not list(folder.iterdir())


def test_settings_from_command_line_environment_and_file(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text('key_bytes_max = 100\nvalue_bytes_max = "1KiB"\nrequest_ops_max = 100\n')
    server = start_server(
        "--config",
        str(file),
        "--key-bytes-max",
        "25",
        env={"GPKVS_KEY_BYTES_MAX": "50", "GPKVS_VALUE_BYTES_MAX": "50"},
    )
    info = server.admin.Info(admin_pb2.InfoRequest())
    assert (info.key_bytes_max, info.value_bytes_max, info.request_ops_max) == (25, 50, 100)


def log_events(server: Server) -> dict[str, dict[str, Any]]:
    """Return the fields of each event in a log of JSON lines; of several alike, the last."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    return {line.get("event", ""): line for line in lines}


def test_json_log(start_server: StartServer) -> None:
    server = start_server("--log-format", "json", "--commit", "undo")
    server.stop()
    events = log_events(server)
    assert list(events) == [
        "start",
        "setting_ignored",  # the journal's size
        "created",
        "contents",
        "domain",
        "commit",
        "limits",
        "memory",
        "access",
        "listening",
        "stopping",
        "closed",
    ]
    assert (events["start"]["version"], events["start"]["pid"]) == (package_version(), server.process.pid)
    assert events["created"]["path"] == str(server.data)
    assert events["created"]["reserved_bytes"] == 21 << 20
    assert events["contents"]["records"] == 0
    assert events["domain"]["domain"] in ("msync", "process")
    assert events["limits"]["message_bytes_max"] == 64 << 20
    assert (events["listening"]["port"], events["listening"]["address"]) == ("metrics", server.metrics_address)
    assert events["stopping"]["signal"] == "SIGTERM"
    assert events["closed"]["message"] == "store closed"
    server.log.unlink()
    server = start_server("--log-format", "json")
    opened = log_events(server)["opened"]
    assert (opened["undone"], opened["undone_entries"], opened["path"]) == (False, 0, str(server.data))
    assert 0 < opened["seconds"] < 60


def test_log_level(start_server: StartServer) -> None:
    start_server("--log-level", "warning").stop()
    server = start_server("--log-level", "error", env={"GPKVS_LOG_LEVEL": "debug"})
    server.stop()
    assert "INFO" not in server.log.read_text()


def hang_up(server: Server, path: Path, text: str, lines: int) -> str:
    """Write a settings file, send SIGHUP, and return the log when it has so many lines about that."""
    path.write_text(text)
    server.process.send_signal(signal.SIGHUP)
    give_up = time.monotonic() + 30
    while (log := server.log.read_text()).count("SIGHUP") < lines:
        assert time.monotonic() < give_up
        assert server.process.poll() is None
        time.sleep(0.01)
    return log.splitlines()[-1]


def test_sighup_reads_the_log_level_again_and_names_what_it_leaves(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text('log_level = "info"\nqueue_requests_max = 100\n')
    server = start_server("--config", str(file))
    changed = hang_up(server, file, 'log_level = "warning"\nqueue_requests_max = 200\nthreads = 1\n', 1)
    assert "WARNING" in changed
    assert "log level warning; these count from the next start: queue_requests_max, threads" in changed
    for number, (text, words) in enumerate(
        [
            ("log_level = 'loud'", "log_level is one of debug, info, warning, error; nothing is changed"),
            ("lisen = 'x'", "there is no setting 'lisen'"),
            ("log_level = ", "cannot read"),
        ],
        start=2,
    ):
        assert words in hang_up(server, file, text, number)
    hang_up(server, file, 'queue_requests_max = 100\nlog_level = "debug"', 5)
    assert not server.kv.Get(kv_pb2.GetRequest(key=b"k")).found
    server.stop()
    assert "SIGTERM: stopping" in server.log.read_text()  # at INFO: the level went back


def test_sighup_leaves_a_level_of_the_command_line(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text("")
    server = start_server("--config", str(file), "--log-level", "info")
    assert "log level info" in hang_up(server, file, 'log_level = "error"', 1)


def test_sighup_without_a_file_does_nothing_and_says_so(server: Server) -> None:
    server.process.send_signal(signal.SIGHUP)
    server.process.send_signal(signal.SIGHUP)
    give_up = time.monotonic() + 30
    while "SIGHUP: there is no --config file to read again" not in server.log.read_text():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert not server.kv.Get(kv_pb2.GetRequest(key=b"k")).found


def test_a_server_starts_with_the_sample_settings(start_server: StartServer) -> None:
    sample = Path(__file__).parents[2] / "deploy/gpkvs.toml"
    server = start_server("--config", str(sample))
    assert server.admin.Info(admin_pb2.InfoRequest()).path == str(server.data)


def test_sizes_are_those_of_creation(start_server: StartServer) -> None:
    server = start_server()
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"v"))
    server.stop()
    server = start_server("--index-bytes", "2MiB", "--heap-bytes", "32MiB")
    assert server.admin.Info(admin_pb2.InfoRequest()).tables[0].index_bytes == 1 << 20
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == b"v"
    log = server.log.read_text()
    assert re.search("WARNING index_bytes=2097152 has no effect: .* this one has 1048576;", log)
    assert "WARNING heap_bytes=33554432 has no effect" in log
    assert "log_bytes=" not in log  # as it is
    server.stop()
    server = start_server("--index-bytes", "64MiB")  # the default, but asked for
    assert "WARNING index_bytes=67108864 has no effect" in server.log.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--insecure-listen", "--listen", "a..b:7000"], "cannot listen on a..b:7000"),
        (["--insecure-listen", "--metrics", "a..b:7000"], "cannot listen on a..b:7000"),
        (["--listen", "127.0.0.1:" + "9" * 5000], "is not HOST:PORT"),
        (["--message-bytes-max", "3GiB"], "message_bytes_max: 3,221,225,472 bytes"),
        (["--log-bytes", "9999TiB"], "log_bytes: "),
        (["--threads", "1000000000"], "--threads"),
        (["--heap-bytes", "9" * 400], "no machine has that"),
        (["--index-bytes", "99999999TiB"], "no machine has that"),
        (["--listen", b"\xff:7000"], "is not UTF-8"),
    ],
)
def test_nonsense_options_are_refused_with_a_line(tmp_path: Path, options: list[str], words: str) -> None:
    result = run_gpkvs("serve", "--data", str(tmp_path / "store"), *ANY_PORT, *options)
    text = " ".join(result.stderr.decode().replace("│", " ").split())
    assert result.returncode in (1, 2)
    assert words in text
    assert "Traceback" not in text
    assert not (tmp_path / "store" / "root").exists()


@pytest.mark.parametrize("specification", ["nonsense", "before_route:x", "before_route:0"])
def test_nonsense_failpoint_is_refused_with_a_line(tmp_path: Path, specification: str) -> None:
    environment = {**os.environ, "GPKVS_FAILPOINT": specification}
    command = [*COMMAND, "recover", str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert "GPKVS_FAILPOINT" in error_line(result, 1)


@pytest.mark.parametrize("name", ["missing/ready", "folder"])
def test_ready_file_that_cannot_be_written_is_found_out_before_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    done = run_gpkvs(
        "serve", "--data", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
        "--ready-file", str(tmp_path / name),
    )  # fmt: skip
    assert done.returncode == 2
    assert b"ready_file: cannot write" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_ready_file_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was writable at the start; that is no fault of gpkvs, and not of the options."""

    def fails(path: Path, _: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(GpkvsError, match=r"ready: No space left on device \(ready_file\)"):
        _write_whole(tmp_path / "ready", "an address")
    assert list(tmp_path.iterdir()) == []


def test_a_ready_file_that_cannot_be_removed_does_not_disturb_the_stop(server: Server) -> None:
    ready = server.log.with_name("ready")
    ready.unlink()
    ready.mkdir()
    server.stop()
    assert f"cannot remove {ready}: Is a directory" in server.log.read_text()
