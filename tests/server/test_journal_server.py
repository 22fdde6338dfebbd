"""A server whose store has a journal: what it says of it everywhere, and what a restart says."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.cli.keys.info import as_dict
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.conftest import SMALL
from tests.server.wire import SET, batch
from tests.serving import Server, StartServer, error_line, run_gpkvs

KEYS = 20_000


@pytest.fixture
def journal_server(start_server: StartServer) -> Server:
    return start_server("--commit", "journal", "--journal-bytes", "4MiB")


def write(server: Server) -> None:
    for first in range(0, KEYS, KEYS // 4):
        server.kv.Batch(batch([(SET, b"%d" % i, b"value") for i in range(first, first + KEYS // 4)]))


def fields_of(log: str, event: str) -> dict[str, object]:
    lines = [json.loads(line) for line in log.splitlines()]
    return next(line for line in lines if line.get("event") == event)


def test_admin_info_and_the_command_tell_of_the_journal(journal_server: Server) -> None:
    write(journal_server)
    info = journal_server.admin.Info(admin_pb2.InfoRequest())
    assert (info.commit, info.journal_bytes, info.log_bytes) == ("journal", 4 << 20, 0)
    assert 0 <= info.journal.used_bytes <= info.journal.capacity_bytes < info.journal_bytes
    shown = run_gpkvs("info", "--target", journal_server.target, env={"COLUMNS": "200"})
    how = "direct: past the page cache" if info.journal.is_direct else "through the page cache"
    line = next(line for line in shown.stdout.decode().splitlines() if line.startswith("commit"))
    assert f"journal ({how}), " in line
    assert line.rstrip().endswith(" in use of 4.0 MiB")
    as_json = json.loads(run_gpkvs("info", "--target", journal_server.target, "--json").stdout)
    assert as_json["commit"] == "journal"
    assert as_json["journal"].keys() == as_dict(info.journal).keys()


@pytest.mark.undo
def test_a_store_with_an_undo_log_has_no_journal(server: Server) -> None:
    info = server.admin.Info(admin_pb2.InfoRequest())
    assert (info.commit, info.journal_bytes, info.log_bytes) == ("undo", 0, 4 << 20)
    assert not info.HasField("journal")
    shown = run_gpkvs("info", "--target", server.target).stdout.decode()
    assert any(line.split() == ["commit", "undo", "log,", "4.0", "MiB"] for line in shown.splitlines())
    assert json.loads(run_gpkvs("info", "--target", server.target, "--json").stdout)["journal"] is None
    top = run_gpkvs("top", "--once", "--json", "--interval", "0.05", "--metrics", server.metrics_address)
    assert json.loads(top.stdout)["journal"] is None
    assert server.metric("gpkvs_server_info", commit="undo") == 1
    assert server.metric("gpkvs_journal_bytes") == 0


def test_metrics_and_top(journal_server: Server) -> None:
    write(journal_server)
    metric = journal_server.metric
    assert metric("gpkvs_journal_bytes") == 4 << 20
    used, capacity = metric("gpkvs_journal_used_bytes"), metric("gpkvs_journal_capacity_bytes")
    assert 0 <= used <= capacity < 4 << 20  # nothing, just after a checkpoint
    assert metric("gpkvs_journal_direct") in (0, 1)
    assert metric("gpkvs_server_info", commit="journal") == 1
    # 80,000 entries of 48 bytes are as much as the journal: at least one checkpoint made room.
    for _ in range(4):
        write(journal_server)
    assert metric("gpkvs_checkpoints_total") >= 1
    assert metric("gpkvs_checkpoint_written_bytes_total") >= 4096
    assert metric("gpkvs_journal_wait_seconds_total") >= 0
    assert metric("gpkvs_log_bytes") == 0
    top = run_gpkvs("top", "--once", "--json", "--interval", "0.05", "--metrics", journal_server.metrics_address)
    assert json.loads(top.stdout)["journal"]["capacity_bytes"] == capacity
    top = run_gpkvs("top", "--once", "--interval", "0.05", "--metrics", journal_server.metrics_address)
    assert "journal in use" in top.stdout.decode()


def test_logs_of_starts_and_the_report_of_a_recovery(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--commit", "journal", "--log-format", "json")
    log = server.log.read_text()
    said = fields_of(log, "commit")
    assert said["commit"] == "journal"
    assert str(said["message"]).startswith("batches commit by a journal of ")
    assert fields_of(log, "created")["reserved_bytes"] == (1 << 20) + (16 << 20) + int(str(said["journal_bytes"]))
    server.stop()
    server.log.unlink()
    with gpkvs.open(tmp_path / "store") as store:
        store._engine.committer.checkpointer.stop()  # type: ignore[attr-defined]  # the close leaves the journal
        store.set(b"key", b"value")

    server = start_server("--commit", "undo", "--log-format", "json")
    messages = [json.loads(line)["message"] for line in server.log.read_text().splitlines()]
    assert any(text.startswith("commit=undo has no effect: the store was created with journal") for text in messages)
    assert any(" of the journal replayed that came after its last checkpoint: 1 slot;" in text for text in messages)
    recovery = server.admin.Info(admin_pb2.InfoRequest()).last_recovery
    assert recovery.replayed_batches >= 1
    assert (recovery.replayed_slots, recovery.cut_batches) == (1, 0)
    report = json.loads((tmp_path / "store/recovery.json").read_text())
    assert report["replayed_batches"] == recovery.replayed_batches
    assert (report["replayed_slots"], report["cut_batches"]) == (1, 0)
    assert server.metric("gpkvs_recovery_replayed_batches") == recovery.replayed_batches


def test_after_a_stop_nothing_is_replayed(start_server: StartServer) -> None:
    server = start_server("--commit", "journal", "--log-format", "json")
    server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"value"))
    said = server.admin.Info(admin_pb2.InfoRequest())
    assert "of the journal; after a clean close it replays nothing, if " in said.next_opening
    shown = run_gpkvs("info", "--target", server.target, env={"COLUMNS": "250"}).stdout.decode()
    assert said.next_opening in shown
    server.stop()
    server.log.unlink()

    server = start_server("--log-format", "json")
    recovery = server.admin.Info(admin_pb2.InfoRequest()).last_recovery
    assert (recovery.replayed_batches, recovery.replayed_slots) == (0, 0)
    assert recovery.report.startswith("the journal had nothing to replay; 1 record; ")
    assert server.kv.Get(kv_pb2.GetRequest(key=b"key")).value == b"value"


def test_a_store_keeps_its_undo_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpkvs.open(tmp_path / "store", **SMALL, commit="undo").close()
    gpkvs.open(tmp_path / "store", commit="journal").close()
    assert "commit=journal has no effect: the store was created with undo and keeps it" in caplog.text
    assert "gpkvs copy OLD NEW --commit journal" in caplog.text
    caplog.clear()
    for commit in ("undo", "auto"):
        gpkvs.open(tmp_path / "store", commit=commit).close()  # type: ignore[arg-type]
    assert not caplog.text


def test_a_journal_is_never_off(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="durability=none: choose undo") as refused:
        gpkvs.open(tmp_path / "new", **SMALL, commit="journal", durability="none")
    assert refused.value.field == "commit"
    gpkvs.open(tmp_path / "store", **SMALL, commit="journal").close()
    with pytest.raises(InvalidArgumentError, match="the store has a journal, which is never off") as refused:
        gpkvs.open(tmp_path / "store", durability="none")
    assert refused.value.field == "durability"
    said = run_gpkvs(
        "serve",
        "--data",
        str(tmp_path / "store"),
        "--durability",
        "none",
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
    )
    assert "the store has a journal" in error_line(said, 2)
    with gpkvs.open(tmp_path / "store") as store:  # a refusal changes nothing
        assert store.info().commit == "journal"


def test_the_help_names_commit_and_journal() -> None:
    text = " ".join(run_gpkvs("serve", "--help", env={"COLUMNS": "1000"}).stdout.decode().split())
    assert "--commit" in text
    assert "--journal-bytes" in text
    assert "How batches become durable. journal: a journal" in text


def test_batches_end_after_the_next_has_begun(tmp_path: Path) -> None:
    """From two threads, with a close in between: a result that waits is not lost."""
    with gpkvs.open(tmp_path / "store", **SMALL, commit="journal") as store:
        begun = [store.begin_requests(Batch.of([(Op.SET, b"%d" % i, b"")])) for i in range(3)]
        results = []
        threads = [threading.Thread(target=lambda each=each: results.append(each.finish())) for each in begun]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        last = store.begin_requests(Batch.of([(Op.SET, b"last", b"")]))
    assert last.is_durable
    assert last.finish().request(0).versions.tolist() == [4]
    assert len(results) == 3
    with gpkvs.open(tmp_path / "store") as store:
        assert store.get(b"last") == b""
