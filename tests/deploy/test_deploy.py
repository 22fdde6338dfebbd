"""What lies in deploy/, against a real server, a real Prometheus and its promtool."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.config import ServerConfig
from gpkvs.engine.seam.meter import COMMIT_PHASES, PHASES
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, server_options
from tests.conftest import assert_clean
from tests.programs import needs
from tests.server.access.guarded import Guarded
from tests.server.wire import DELETE, GET, SET, Refused, batch
from tests.serving import SIZES, Server, StartServer

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/gpkvs.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
ALERTS = (DEPLOY / "alerts.yml").read_text()
METRIC = re.compile(r"\b(?:gpkvs|grpc_server|process)_[a-z_]+")

needs_prometheus = needs("prometheus", "promtool")


class Load:
    """SETs, GETs and DELETEs in a thread, until it is stopped."""

    def __init__(self, server: Server, *header: tuple[str, str]) -> None:
        self._server = server
        self._header = header
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            keys = [b"%d" % ((50 * number + i) % 5000) for i in range(50)]
            operations = [(SET, key, b"value") for key in keys] + [(GET, key) for key in keys]
            self._server.kv.Batch(batch([*operations, (DELETE, keys[0])]), metadata=self._header)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def refuse_one(server: Server, *header: tuple[str, str]) -> None:
    """Have a request refused, so that this is counted too."""
    with Refused(grpc.StatusCode.INVALID_ARGUMENT):
        server.kv.Set(kv_pb2.SetRequest(key=b""), metadata=header)


def tell_of_copies(server: Server, *header: tuple[str, str]) -> None:
    """Tell of a backup and an archive, as whoever makes them does."""
    whole = admin_pb2.NoteBackupRequest(state=admin_pb2.BACKUP_WHOLE, keys=1, bytes=4096, seconds=1.0)
    server.admin.NoteBackup(whole, metadata=header)
    watch = server.kv.Watch(kv_pb2.WatchRequest(all_tables=True), metadata=header)
    synced = admin_pb2.NoteArchiveRequest(position=next(watch).position, time_ms=time.time_ns() // 1_000_000)
    server.admin.NoteArchive(synced, metadata=header)
    watch.cancel()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Return a server with a journal, TLS, users, an audit log and the Redis protocol."""
    authority = Authority(tmp_path)
    accounts = Accounts(tmp_path / "users.toml", root=Account(read=("*",), write=("*",), metrics=True, backup=True))
    tls = server_options(authority.issue("server", *HERE))
    audit = ("--audit-log", str(tmp_path / "audit.log"))
    resp = ("--resp", "127.0.0.1:0")
    started = Guarded(accounts, tmp_path, "--commit", "journal", *resp, *tls, *audit, authority=authority)
    yield started
    started.close()


def wait_for(what: str, found: Callable[[], Any], seconds_max: float = 30.0) -> Any:
    """Return the first true answer."""
    give_up = time.monotonic() + seconds_max
    while not (answer := found()):
        assert time.monotonic() < give_up, what
        time.sleep(0.1)
    return answer


class Prometheus:
    """A real Prometheus that scrapes one server, with the configuration in deploy/.

    For a server with TLS and users, the lines that are there as comments count, and the folder has its CA and a token.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        config = (DEPLOY / "prometheus.yml").read_text()
        changes = [("127.0.0.1:9171", server.metrics_address), (": 5s", ": 250ms"), (": 15s", ": 250ms")]
        if server.metrics_headers:
            (folder / "token").write_text(server.metrics_headers["Authorization"].removeprefix("Bearer "))
            changes += [(f"# {name}:", f"{name}:") for name in ("scheme", "tls_config", "  ca_file", "authorization")]
            changes += [("/etc/prometheus/gpkvs-ca.pem", f"{folder}/ca.pem")]
            changes += [("/etc/prometheus/gpkvs-token", f"{folder}/token")]
        for old, new in changes:
            assert old in config
            config = config.replace(old, new)
        (folder / "prometheus.yml").write_text(config)
        (folder / "alerts.yml").write_text(ALERTS)
        self._log = folder / "prometheus.log"
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["prometheus", *options, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log
            )
        try:
            # With port 0 only the log knows the port.
            self._base = "http://" + wait_for("Prometheus did not listen", self._address)
            wait_for("Prometheus was not ready", self._is_ready)
        except BaseException:
            self.stop()
            raise

    def _address(self) -> str | None:
        log = self._log.read_text()
        assert self._process.poll() is None, log
        found = re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", log)
        return found[1] if found else None

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._base}/-/ready", timeout=5) as response:
                return bool(response.status == 200)
        except urllib.error.URLError:
            return False

    def api(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10
        ) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression, those that are not a number left out."""
        return [series for series in self.api("query", query=expression)["result"] if series["value"][1] != "NaN"]

    def value(self, expression: str) -> float:
        (series,) = self.query(expression)
        return float(series["value"][1])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def empty_queries(prometheus: Prometheus) -> list[str]:
    """Return the dashboard's queries that find nothing."""
    return [
        query
        for query in QUERIES
        if not prometheus.query(query.replace("$instance", ".*").replace("$__rate_interval", "5s"))
    ]


@pytest.fixture
def prometheus(server: Server, tmp_path: Path) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    started = Prometheus(server, folder)
    try:
        yield started
    finally:
        started.stop()


def test_metrics_of_dashboard_alerts_and_documents_exist(guarded: Guarded) -> None:
    """With a journal, TLS and users: they have some more."""
    server, header = guarded.server, guarded.headers["root"]
    server.kv.Set(kv_pb2.SetRequest(key=b"key"), metadata=header)
    refuse_one(server, *header)
    tell_of_copies(server, *header)
    exported = {sample.name for sample in server.samples()}
    expressions = [*QUERIES, *re.findall(r"expr: (?:\|\n)?((?:.+\n)(?: {10,}.+\n)*)", ALERTS)]
    assert len(expressions) > 40
    used = {name for expression in expressions for name in METRIC.findall(expression)}
    assert {"gpkvs_operations_total", "gpkvs_table_load_factor", "process_start_time_seconds"} < used
    assert used <= exported, f"not exported: {used - exported}"
    texts = [
        path.read_text() for path in (REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), *DEPLOY.glob("*.md"))
    ]
    named = {name for text in texts for name in re.findall(r"`(gpkvs_[a-z_]+[a-z])\b", text)}
    assert {"gpkvs_redis_commands_total", "gpkvs_clock_back_seconds", "gpkvs_connections_refused_total"} < named
    histograms = {name.removesuffix("_bucket") for name in exported}
    assert named <= exported | histograms, f"named, not exported: {named - exported}"


@needs_prometheus
@pytest.mark.parametrize("arguments", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts(arguments: tuple[str, str]) -> None:
    kind, name = arguments
    result = subprocess.run(["promtool", "check", kind, DEPLOY / name], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "SUCCESS" in result.stdout


@needs("promtool")
def test_promtool_accepts_the_metrics(start_server: StartServer) -> None:
    server = start_server("--resp", "127.0.0.1:0")
    server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"value"))
    refuse_one(server)
    tell_of_copies(server)
    text = server.metrics_text()
    assert "grpc_server_handled_total{" in text
    command = ["promtool", "check", "metrics"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_prometheus
def test_promtool_accepts_the_lines_for_tls_and_users(tmp_path: Path) -> None:
    config = re.sub(r"^    # ( *[a-z_]+: *)", r"    \1", (DEPLOY / "prometheus.yml").read_text(), flags=re.MULTILINE)
    assert not re.search(r"# +[a-z_]+:", config)
    for name in ("gpkvs-ca.pem", "gpkvs-client.pem", "gpkvs-client.key", "gpkvs-token"):
        config = config.replace(f"/etc/prometheus/{name}", f"{tmp_path}/{name}")
        (tmp_path / name).touch()
    (tmp_path / "alerts.yml").write_text(ALERTS)
    (tmp_path / "prometheus.yml").write_text(config)
    command = ["promtool", "check", "config", tmp_path / "prometheus.yml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@needs_prometheus
@pytest.mark.parametrize("name", ["backup_alerts.yml", "security_alerts.yml", "space_alerts.yml"])
def test_alerts_fire_when_they_should(tmp_path: Path, name: str) -> None:
    without_texts = re.sub(r"^ +(annotations|summary|action|runbook):.*\n", "", ALERTS, flags=re.MULTILINE)
    (tmp_path / "alerts.yml").write_text(without_texts)
    shutil.copy(Path(__file__).with_name(name), tmp_path)
    command = ["promtool", "test", "rules", tmp_path / name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_says_what_to_do() -> None:
    rules = ALERTS.split("- alert: ")[1:]
    assert len(rules) >= 10
    assert all(re.search(r"^ +action: \S.{40,}$", rule, re.MULTILINE) for rule in rules)


def test_every_alert_has_an_entry_in_the_runbook() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    linked = re.findall(r"^ +runbook: docs/runbook\.md#(\w+)$", ALERTS, re.MULTILINE)
    assert linked == [name.lower() for name in alerts], "each links to its own entry"
    entries = re.findall(r"^### (\w+)\n\n(?=\S)", (REPOSITORY / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(alerts)


def test_every_entry_of_the_runbook_says_when_it_is_over() -> None:
    entries = re.split(r"^### ", (REPOSITORY / "docs/runbook.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == ALERTS.count("- alert: ")
    told = {entry.split()[0] for entry in entries if re.search(r"It is over\s+when ", entry.partition("\n## ")[0])}
    assert told == set(re.findall(r"- alert: (\w+)", ALERTS))


@needs_prometheus
@pytest.mark.undo
def test_prometheus_scrapes_a_server_under_load(server: Server, prometheus: Prometheus) -> None:
    refuse_one(server)
    with Load(server):
        wait_for(
            "Prometheus saw no operations", lambda: prometheus.query('rate(gpkvs_operations_total{op="set"}[5s]) > 0')
        )
        time.sleep(2)
        assert prometheus.value('up{job="gpkvs"}') == 1
        sets, gets = (prometheus.value(f'sum(rate(gpkvs_operations_total{{op="{op}"}}[5s]))') for op in ("set", "get"))
        assert 0.5 < sets / gets < 2
        phases = {
            series["metric"]["phase"]: float(series["value"][1])
            for series in prometheus.query("sum by (phase) (rate(gpkvs_phase_seconds_total[5s]))")
        }
        assert phases.keys() == set(PHASES)
        assert all(phases[phase] > 0 for phase in ("plan", *COMMIT_PHASES))
        # The phases are all of the engine's time, and one thread has one second in a second.
        engine = prometheus.value("rate(gpkvs_batch_seconds_sum[5s])")
        assert 0.7 < sum(phases.values()) / engine < 1.3
        assert engine < 1.1
        # A 4- to 5-byte key and value make a record of 48 bytes, an undo entry of 48 and a slot of 32.
        amplification = "sum(rate(gpkvs_written_bytes_total[5s])) / sum(rate(gpkvs_user_bytes_total[5s]))"
        assert 5 < prometheus.value(amplification) < 50
        elsewhere = ("journal", "checkpoint", "certificate", "backup_last", "archive")  # the next test has them
        assert all(any(name in query for name in elsewhere) for query in empty_queries(prometheus))
    rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == ALERTS.count("- alert: ")
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert not firing, rules


@needs_prometheus
def test_prometheus_scrapes_a_server_with_a_journal_tls_and_users(guarded: Guarded, tmp_path: Path) -> None:
    server, header = guarded.server, guarded.headers["root"]
    refuse_one(server, *header)
    tell_of_copies(server, *header)
    prometheus = Prometheus(server, tmp_path)
    try:
        with Load(server, *header):
            wait_for("Prometheus saw no batches", lambda: prometheus.query("rate(gpkvs_batch_seconds_count[5s]) > 0"))
            time.sleep(2)
            assert not empty_queries(prometheus), "these queries of the dashboard find nothing"
            assert 0 < prometheus.value("gpkvs_journal_used_bytes / gpkvs_journal_capacity_bytes") < 0.9
            assert (
                prometheus.value('sum(gpkvs_logins_total{method="token",result="ok"})') == 2
            )  # this one's, and Load's
            # The flush is no phase of the engine: it may run the next batch meanwhile.
            assert prometheus.value("rate(gpkvs_batch_seconds_sum[5s])") > prometheus.value(
                "sum(rate(gpkvs_phase_seconds_total[5s]))"
            )
    finally:
        prometheus.stop()


@needs_prometheus
def test_alert_when_the_server_is_gone(server: Server, prometheus: Prometheus) -> None:
    def state(name: str) -> str:
        rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
        return str(next(rule["state"] for rule in rules if rule["name"] == name))

    wait_for("Prometheus saw no server", lambda: prometheus.query('up{job="gpkvs"} == 1'))
    assert state("GpkvsDown") == "inactive"
    server.stop()
    wait_for("no alert", lambda: state("GpkvsDown") == "pending")


def test_commands_of_the_systemd_unit(tmp_path: Path) -> None:
    """ExecStartPost waits until ExecStart serves, and fails if that has ended."""
    unit = dict(
        line.split("=", 1)
        for line in (DEPLOY / "gpkvs.service").read_text().splitlines()
        if line.startswith(("ExecStart=", "ExecStartPost="))
    )

    def command(name: str) -> list[str]:
        line = unit[name].replace("/var/lib/gpkvs", f"{tmp_path}/store").replace("/run/gpkvs", str(tmp_path))
        return shlex.split(line)

    program, *arguments = command("ExecStart")
    assert program == "/opt/gpkvs/bin/gpkvs"
    options = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *SIZES]
    main = subprocess.Popen([sys.executable, "-m", "gpkvs.cli", *arguments, *options])
    environment = {"MAINPID": str(main.pid), "PATH": "/usr/bin:/bin"}
    try:
        assert subprocess.run(command("ExecStartPost"), env=environment, timeout=60, check=False).returncode == 0
        assert main.poll() is None
        assert (tmp_path / "ready").read_text().count("127.0.0.1:") == 2
    finally:
        main.send_signal(signal.SIGTERM)
        main.wait(60)
    assert main.returncode == 0
    assert not (tmp_path / "ready").exists()
    assert subprocess.run(command("ExecStartPost"), env=environment, timeout=60, check=False).returncode == 1


def test_the_command_of_the_backup_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "gpkvs-backup.service").read_text()
    (command,) = re.findall(r"^ExecStart=/opt/gpkvs/bin/gpkvs (.*)$", unit, re.MULTILINE)
    assert re.search(r"^StateDirectory=gpkvs-backups$", unit, re.MULTILINE)
    server = Server(tmp_path / "store", tmp_path)
    arguments = shlex.split(command.replace("/var/lib", str(tmp_path)))
    environment = {**os.environ, "GPKVS_TARGET": server.target}
    done = subprocess.run([sys.executable, "-m", "gpkvs.cli", *arguments], env=environment, check=False)
    server.stop()
    assert done.returncode == 0
    (backup,) = (tmp_path / "gpkvs-backups").iterdir()
    assert_clean(backup)


def test_the_command_of_the_archive_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "gpkvs-archive.service").read_text()
    (command,) = re.findall(r"^ExecStart=/opt/gpkvs/bin/gpkvs (.*)$", unit, re.MULTILINE)
    assert re.search(r"^StateDirectory=gpkvs-archive$", unit, re.MULTILINE)
    server = Server(tmp_path / "store", tmp_path)
    arguments = shlex.split(command.replace("/var/lib", str(tmp_path)))
    environment = {**os.environ, "GPKVS_TARGET": server.target}
    with subprocess.Popen([sys.executable, "-m", "gpkvs.cli", *arguments], env=environment) as process:
        while not (bases := list((tmp_path / "gpkvs-archive").glob("*Z"))):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
    server.stop()
    assert process.returncode == 0
    assert_clean(bases[0])


def test_the_image_and_the_compose_file_publish_every_port() -> None:
    dockerfile, compose = (DEPLOY / "Dockerfile").read_text(), (DEPLOY / "compose.yml").read_text()
    (exposed,) = re.findall(r"^EXPOSE (.*)$", dockerfile, re.MULTILINE)
    ports = {ServerConfig.listen: 7171, ServerConfig.metrics: 9171}
    assert all(address.endswith(f":{port}") for address, port in ports.items())
    assert exposed.split() == [*map(str, ports.values()), "6379"]
    for option, port in (("--listen", 7171), ("--metrics", 9171)):
        assert re.search(rf'{option}"?, "0\.0\.0\.0:{port}"', dockerfile)
    for option, inside, outside in (("--listen", 7171, 7171), ("--metrics", 9171, 9171), ("--resp", 6379, 6380)):
        assert f'{option}, "0.0.0.0:{inside}"' in compose
        assert f'"127.0.0.1:{outside}:{inside}"' in compose
