"""gpkvs ycsb against a real server: what it does, and what it prints."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpkvs.client import Client
from gpkvs.client.ycsb.workload import pack, unpack
from tests.serving import COMMAND, Server, StartServer, error_line, run_gpkvs

RECORDS = 2000
FIRST_KEY = b"user6284781860667377211"  # of every load of YCSB

LINE = re.compile(r"\[([A-Z-]+|Intended-[A-Z-]+)\], ([^,]+), ([0-9.]+)")


def figures(output: bytes) -> dict[str, dict[str, float]]:
    """Read a report; every line must be one of YCSB's."""
    groups: dict[str, dict[str, float]] = {}
    for line in output.decode().splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        groups.setdefault(match[1], {})[match[2]] = float(match[3])
    return groups


def ycsb(
    server: Server, phase: str, *properties: str, options: tuple[str, ...] = (), status: int = 0
) -> dict[str, dict[str, float]]:
    """Run a phase to its end and return its report."""
    given = [option for text in (f"recordcount={RECORDS}", *properties) for option in ("-p", text)]
    result = run_gpkvs("ycsb", phase, "--target", server.target, "--threads", "32", *given, *options)
    assert result.returncode == status, result.stderr.decode()
    return figures(result.stdout)


def test_load_then_run_a_b_and_c(server: Server) -> None:
    loaded = ycsb(server, "load", options=("--workload", "a"))
    assert loaded["INSERT"]["Operations"] == loaded["INSERT"]["Return=OK"] == RECORDS
    assert loaded["OVERALL"]["Throughput(ops/sec)"] == pytest.approx(
        RECORDS * 1000 / loaded["OVERALL"]["RunTime(ms)"], rel=1e-6
    )
    with Client(server.target) as client:
        value = client.get(FIRST_KEY)
        assert value is not None
        assert {field: len(content) for field, content in unpack(value).items()} == {
            f"field{i}": 100 for i in range(10)
        }
        assert client.info().tables[0].records == RECORDS
    for workload, read_share in (("a", 0.5), ("b", 0.95), ("c", 1.0)):
        report = ycsb(server, "run", "operationcount=3000", options=("--workload", workload))
        reads = report["READ"]["Return=OK"]
        assert reads / 3000 == pytest.approx(read_share, abs=0.06)
        assert report.get("UPDATE", {}).get("Return=OK", 0) == 3000 - reads
        read = report["READ"]
        assert read["MinLatency(us)"] <= read["50thPercentileLatency(us)"] <= read["95thPercentileLatency(us)"]
        assert read["95thPercentileLatency(us)"] <= read["99thPercentileLatency(us)"]
        assert read["MinLatency(us)"] <= read["AverageLatency(us)"] <= read["MaxLatency(us)"]
        assert report["CLEANUP"]["Operations"] == 1


def test_an_update_changes_one_field_and_keeps_the_others(server: Server) -> None:
    options = ("-p", "insertorder=ordered", "-p", "zeropadding=4")
    ycsb(server, "load", "recordcount=1", options=options)
    with Client(server.target) as client:
        before = unpack(client.get(b"user0000") or b"")
        ycsb(
            server,
            "run",
            "recordcount=1",
            "operationcount=1",
            "readproportion=0",
            "updateproportion=1",
            options=options,
        )
        after = unpack(client.get(b"user0000") or b"")
        assert sum(before[field] != after[field] for field in before) == 1
        assert before.keys() == after.keys()


def test_data_integrity_is_verified_and_damage_is_seen(server: Server) -> None:
    integrity = ("dataintegrity=true", "recordcount=50", "operationcount=500")
    ycsb(server, "load", *integrity)
    report = ycsb(server, "run", *integrity, "readproportion=0.5", "updateproportion=0.5")
    assert report["VERIFY"]["Return=OK"] == report["READ"]["Return=OK"]
    with Client(server.target) as client:
        client.set(FIRST_KEY, pack({f"field{i}": bytes(100) for i in range(10)}))
    report = ycsb(server, "run", *integrity, "readproportion=1", "updateproportion=0", status=1)
    assert report["VERIFY"]["Return=UNEXPECTED_STATE"] > 0
    assert report["READ"]["Return=OK"] == 500


def test_other_operations_and_intended_latency(server: Server) -> None:
    mixed = ("readproportion=0.4", "updateproportion=0", "insertproportion=0.3", "readmodifywriteproportion=0.3")
    ycsb(server, "load")
    report = ycsb(
        server, "run", *mixed, "operationcount=1000", "requestdistribution=latest", "measurement.interval=both"
    )
    assert report["INSERT"]["Return=OK"] + report["READ"]["Return=OK"] == 1000
    assert report["READ-MODIFY-WRITE"]["Operations"] == report["UPDATE"]["Return=OK"]
    assert report["Intended-READ"]["Operations"] == report["READ"]["Operations"]


def test_workloads_d_and_f(server: Server) -> None:
    ycsb(server, "load", options=("--workload", "d"))
    report = ycsb(server, "run", "operationcount=3000", options=("--workload", "d"))
    inserts = report["INSERT"]["Return=OK"]
    assert inserts / 3000 == pytest.approx(0.05, abs=0.03)
    assert report["READ"]["Return=OK"] == 3000 - inserts
    with Client(server.target) as client:
        assert client.info().tables[0].records == RECORDS + inserts
    report = ycsb(server, "run", "operationcount=2000", options=("--workload", "f"))
    assert report["READ"]["Return=OK"] == 2000
    changes = report["READ-MODIFY-WRITE"]["Operations"]
    assert changes == report["UPDATE"]["Return=OK"]
    assert changes / 2000 == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("workload", ["a", "d", "f"])
def test_many_operations_in_a_message(server: Server, workload: str) -> None:
    options = ("--workload", workload, "--batch", "100", "-p", "dataintegrity=true")
    assert ycsb(server, "load", options=options)["INSERT"]["Return=OK"] == RECORDS
    messages = server.metric("grpc_server_handled_total", grpc_method="Batch")
    assert messages == RECORDS / 100
    report = ycsb(server, "run", "operationcount=4000", "measurement.interval=both", options=options)
    messages = server.metric("grpc_server_handled_total", grpc_method="Batch") - messages
    assert 40 <= messages <= 80
    reads = report["READ"]["Return=OK"]
    assert report["VERIFY"]["Return=OK"] == reads  # every record is whole, those written by updates too
    assert report["Intended-READ"]["Operations"] == reads
    updates = report.get("UPDATE", {}).get("Return=OK", 0)
    inserts = report.get("INSERT", {}).get("Return=OK", 0)
    changes = report.get("READ-MODIFY-WRITE", {}).get("Operations", 0)
    assert reads + updates + inserts - changes == 4000
    assert {"a": updates, "d": inserts, "f": changes}[workload] > 100


def test_messages_to_a_full_store_fail_whole_and_the_load_goes_on(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "16MiB")
    report = ycsb(server, "load", "recordcount=1000", "fieldlength=2500", options=("--batch", "10"), status=1)
    insert = report["INSERT"]
    assert 200 < insert["Return=OK"] < 700
    assert insert["Return=OK"] % 10 == 0
    assert insert["Return=OK"] + insert["Return=ERROR"] == 1000
    missing = ycsb(server, "run", "recordcount=1000", "operationcount=500", options=("--batch", "50"), status=1)
    assert missing["READ"]["Return=NOT_FOUND"] > 50


def test_a_throttle_holds_and_status_lines_go_to_stderr(server: Server) -> None:
    ycsb(server, "load")
    result = run_gpkvs(
        *("ycsb", "run", "--workload", "c", "--target", server.target, "-threads", "4", "--ops-per-second", "200"),
        *("-p", "operationcount=300", "-p", "status.interval=1", "-s", "--json", "-p", "made.up=1"),
    )
    assert result.returncode == 0
    report = json.loads(result.stdout)
    assert 150 < report["OVERALL"]["Throughput(ops/sec)"] < 215
    assert report["READ"]["Return=OK"] == 300
    lines = result.stderr.decode().splitlines()
    assert lines[0] == "gpkvs: warning: property 'made.up' is not known here and has no effect"
    assert re.search(r"\b1 sec: \d+ operations; \d+\.\d\d current ops/sec; est completion in \d+ second", lines[1])


def test_failed_inserts_are_counted_and_the_load_goes_on(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "16MiB")
    report = ycsb(server, "load", "recordcount=100", "fieldlength=25000", status=1)
    insert = report["INSERT"]
    assert 20 < insert["Return=OK"] < 68  # 16 MiB
    assert insert["Return=OK"] + insert["Return=ERROR"] == 100
    assert report["INSERT-FAILED"]["Operations"] == insert["Return=ERROR"]


def test_a_miss_is_not_found(server: Server) -> None:
    report = ycsb(server, "run", "operationcount=100", "recordcount=100", status=1)
    misses = report["READ"]["Return=NOT_FOUND"] + report.get("UPDATE", {}).get("Return=NOT_FOUND", 0)
    assert misses == 100
    assert report["READ"]["Operations"] == 0


def test_an_interrupted_run_still_reports(server: Server) -> None:
    ycsb(server, "load", "recordcount=100")
    options = ["--target", server.target, "-p", "recordcount=100", "-p", "operationcount=100000000", "-s"]
    options += ["-p", "status.interval=1"]
    with subprocess.Popen(
        [*COMMAND, "ycsb", "run", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # it runs
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert figures(output)["READ"]["Return=OK"] > 0
    assert b"interrupted after" in errors
    assert b"Traceback" not in errors


@pytest.mark.parametrize("batch", ["1", "10"])
def test_a_run_gives_up_when_the_server_does_not_come_back(tmp_path: Path, batch: str) -> None:
    server = Server(tmp_path / "store", tmp_path)
    ycsb(server, "load", "recordcount=100")
    given = ["recordcount=100", "operationcount=100000000", "maxunavailabletime=0.5", f"batch={batch}"]
    options = ["--target", server.target, "--threads", "4", *(word for text in given for word in ("-p", text))]
    command = [*COMMAND, "ycsb", "run", *options, "-s", "-p", "status.interval=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            process.stderr.readline()  # it runs
            server.kill()
            output, errors = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 1, errors
    assert figures(output)["READ"]["Return=OK"] > 0
    assert b"operations: no response has come for 0.5 s (property maxunavailabletime): " in errors
    assert b"Traceback" not in errors


def test_a_server_that_is_away_is_told_in_seconds() -> None:
    began = time.monotonic()
    options = ("-p", "recordcount=1", "-p", "operationcount=1000", "--target", "127.0.0.1:1")
    assert "is the server running there?" in error_line(run_gpkvs("ycsb", "run", *options), 2)
    assert time.monotonic() - began < 100  # it waits for 10 s that the server is ready


def test_a_time_limit_ends_a_run(server: Server) -> None:
    ycsb(server, "load", "recordcount=100")
    report = ycsb(server, "run", "recordcount=100", "operationcount=100000000", "maxexecutiontime=1")
    assert 900 < report["OVERALL"]["RunTime(ms)"] < 5000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "-p", "recordcount=10"), "operationcount=N"),
        (("run", "-p", "operationcount=10"), "recordcount=N"),
        (("load", "-p", "recordcount"), "name=value"),
        (("load", "-P", "/nonexistent/workload"), "cannot read"),
        (("load", "-p", "recordcount=10", "--target", "1000"), "--ops-per-second"),
        (("run", "-p", "recordcount=10", "-p", "operationcount=1", "-p", "scanproportion=1"), "no order of keys"),
        (("run", "--workload", "e"), "no order of keys"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: tuple[str, ...], words: str) -> None:
    assert words in error_line(run_gpkvs("ycsb", *arguments), 2)


def test_a_file_of_properties_is_read_and_options_win(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("recordcount=10\nfieldcount=2\nfieldlength=5\nthreadcount=3\n", "utf-8")
    result = run_gpkvs("ycsb", "load", "-P", str(file), "-p", "fieldcount=3", "--target", server.target)
    assert figures(result.stdout)["INSERT"]["Return=OK"] == 10
    with Client(server.target) as client:
        assert {len(content) for content in unpack(client.get(FIRST_KEY) or b"").values()} == {5}
        assert len(unpack(client.get(FIRST_KEY) or b"")) == 3
