"""`gpkvs config show`: what `gpkvs serve` would use, where each value comes from, and what has no effect."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import gpkvs
from gpkvs.cli.lazy_commands import load
from gpkvs.cli.main import Gpkvs, app
from gpkvs.cli.options.config_options import given_settings
from gpkvs.cli.serving import serve
from gpkvs.cli.serving.hand_over import Settings
from gpkvs.config import StoreConfig
from gpkvs.media.layout import ROOT_OFFSETS
from gpkvs.store import Store
from tests.serving import run_gpkvs

ROOT = Path(__file__).parents[3]
NO_VARIABLES = {"COLUMNS": "1000"}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the suite's own choices."""
    for name in list(os.environ):
        if name.startswith("GPKVS_"):
            monkeypatch.delenv(name)


def show(*arguments: str, status: int = 0, **variables: str) -> dict[str, Any]:
    """Return what the command says to scripts."""
    done = CliRunner().invoke(app, ["config", "show", "--json", *arguments], env=NO_VARIABLES | variables)
    assert done.exit_code == status, done.output
    assert not done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    said["settings"] = {setting["name"]: setting for setting in said["settings"]}
    return said


def origins(said: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    return {name: (setting["value"], setting["origin"]) for name, setting in said["settings"].items()}


def command_of(name: str) -> Any:
    found = load(name, Gpkvs.subcommands[name][0])
    return found.commands["show"] if name == "config" else found


def test_it_takes_the_options_of_serve() -> None:
    def taken(name: str) -> dict[str, tuple[Any, ...]]:
        return {
            option.name: (option.opts, option.envvar, option.default, option.help, option.is_eager)
            for option in command_of(name).params
        }

    served, shown = taken("serve"), taken("config")
    assert len(served) > 40
    assert {name: shown[name] for name in served} == served
    assert shown.keys() - served.keys() == {"changed", "as_json"}


def test_it_shows_what_serve_would_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text(
        'listen = "127.0.0.1:1"\nindex_bytes = "1MiB"\nthreads = 3\nlog_level = "debug"\nkey_bytes_max = 9\n'
    )
    given = ["--config", str(file), "--data", str(tmp_path / "s"), "--index-bytes", "2MiB", "--memory-max", "1GiB"]
    variables = {"GPKVS_THREADS": "2", "GPKVS_INDEX_BYTES": "4MiB", "GPKVS_LOG_FORMAT": "json", "GPKVS_READY_FILE": "r"}
    handed: list[Settings] = []
    monkeypatch.setattr(serve, "hand_over", handed.append)
    assert CliRunner().invoke(app, ["serve", *given], env=variables).exit_code == 0
    ((options, log_format, log_level, _),) = handed
    used = {name: value for made in (options.store, options.server) for name, value, _ in given_settings(made)}
    used |= {"data": options.data, "config": file, "ready_file": Path("r")}
    used |= {"log_format": log_format, "log_level": log_level}
    said = show(*given, **variables)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in used.items()}
    assert {name: value for name, (value, _) in origins(said).items()} == plain
    assert [plain[name] for name in ("listen", "index_bytes", "threads", "key_bytes_max", "ready_file")] == [
        *("127.0.0.1:1", 2 << 20, 2, 9, "r")
    ]


def test_each_origin_and_what_wins(tmp_path: Path) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text("key_bytes_max = 100\nvalue_bytes_max = 200\nrequest_ops_max = 300\n")
    variables = {"GPKVS_CONFIG": str(file), "GPKVS_KEY_BYTES_MAX": "50", "GPKVS_VALUE_BYTES_MAX": "60"}
    given = ("--data", str(tmp_path / "s"), "--key-bytes-max", "25")
    assert origins(show(*given, "--changed", **variables)) == {
        "data": (str(tmp_path / "s"), "flag"),
        "config": (str(file), "environment"),
        "key_bytes_max": (25, "flag"),
        "value_bytes_max": (60, "environment"),
        "request_ops_max": (300, "file"),
    }
    assert origins(show(*given, **variables))["threads"] == (0, "default")


def test_the_sample_file_has_all_settings(tmp_path: Path) -> None:
    said = show("--config", str(ROOT / "deploy/gpkvs.toml"), "--data", str(tmp_path / "s"))
    text = (ROOT / "deploy/gpkvs.toml").read_text()
    assert {name for name in said["settings"] if f"\n{name} = " not in text and f"\n# {name} = " not in text} == {
        "config"
    }
    assert {origin for _, origin in origins(said).values()} == {"default", "file", "flag"}
    # It says the defaults. A size that is given is another thing than none, though: given alone, it is also a limit.
    changed = show("--config", str(ROOT / "deploy/gpkvs.toml"), "--data", str(tmp_path / "s"), "--changed")
    sizes = {"index_bytes", "heap_bytes", "heap_bytes_max", "log_bytes", "log_bytes_max"}
    assert changed["settings"].keys() == {"config", "data"} | sizes


@pytest.mark.parametrize(
    ("origin", "counts"), [("default", "SIGHUP"), ("file", "SIGHUP"), ("environment", "restart"), ("flag", "restart")]
)
def test_where_a_change_counts(tmp_path: Path, origin: str, counts: str) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text('log_level = "debug"\n' if origin == "file" else "")
    level = ["--log-level", "error"] if origin == "flag" else []
    variables = {"GPKVS_LOG_LEVEL": "error"} if origin == "environment" else {}
    found = show("--config", str(file), "--data", str(tmp_path / "s"), *level, **variables)["settings"]
    assert (found["log_level"]["origin"], found["log_level"]["counts"]) == (origin, counts)
    assert {name: setting["counts"] for name, setting in found.items() if setting["counts"] != "restart"} == {
        **({"log_level": "SIGHUP"} if counts == "SIGHUP" else {}),
        **dict.fromkeys(("index_bytes", "commit", "format"), "new store"),
        **dict.fromkeys(("heap_bytes", "log_bytes", "journal_bytes"), "new store, restart"),
    }


def test_what_counts_where_nothing_is_given(tmp_path: Path) -> None:
    def meanings(*given: str) -> dict[str, str]:
        found = show("--data", str(tmp_path / "s"), *given)["settings"]
        return {name: setting["meaning"] for name, setting in found.items() if setting["value"] is None}

    usual = meanings()
    assert [usual[name] for name in ("index_bytes", "heap_bytes_max", "log_bytes_max", "resp", "users")] == [
        *("4MiB", "16TiB", "64MiB", "nowhere", "none")
    ]
    fixed = meanings("--heap-bytes", "64MiB", "--log-bytes", "2MiB", "--journal-bytes", "8MiB")
    assert [fixed[name] for name in ("heap_bytes_max", "log_bytes_max", "journal_bytes_max")] == [
        "64MiB",
        "2MiB",
        "8MiB",
    ]


def test_an_unknown_variable_is_named_with_the_nearest(tmp_path: Path) -> None:
    said = show("--data", str(tmp_path / "s"), status=1, GPKVS_HEAP_BITES="3", GPKVS_SERVICE_PORT_GRPC="7171")
    (fault,) = said["faults"]
    assert fault["text"].startswith("there is no environment variable 'GPKVS_HEAP_BITES'; ")
    assert "nearest names are GPKVS_HEAP_BYTES" in fault["text"]


def test_variables_of_kubernetes_and_of_other_commands_are_none(tmp_path: Path) -> None:
    others = {"GPKVS_SERVICE_HOST": "10.0.0.1", "GPKVS_PORT": "tcp://10.0.0.1:7171", "GPKVS_TARGET": "a:1"}
    assert show("--data", str(tmp_path / "s"), **others)["faults"] == []


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    variables = dict.fromkeys(("GPKVS_TOKEN", "GPKVS_PASSWORD", "GPKVS_REDIS_PASSWORD", "GPKVS_PASWORD"), "s3cret")
    for form in ([], ["--json"]):
        done = CliRunner().invoke(app, ["config", "show", *form, "--data", str(tmp_path / "s")], env=variables)
        assert done.exit_code == 1  # for the slip
        assert "GPKVS_PASWORD" in done.output
        assert "s3cret" not in done.output


def test_serve_needs_data() -> None:
    said = show(status=1)
    assert said["settings"]["data"]["meaning"] == "must be given"
    assert "--data" in said["faults"][0]["text"]


# What is wrong by itself: a line of a settings file, and what is said.
WRONG = [
    ('lisen = "x"', "there is no setting 'lisen'; there are 47, the nearest names are listen,"),
    ("changed = true", "there is no setting 'changed'"),
    ("as_json = true", "there is no setting 'as_json'"),
    ('threads = ["1"]', "threads takes one value"),
    ('index_bytes = "64 parsecs"', "'64 parsecs' is no size: write bytes, or a number with KiB"),
    ("index_bytes = 1", "index_bytes: 1 bytes, allowed are 65,536 to 17,592,186,044,416"),
    ("heap_bytes = 1", "heap_bytes: 1 bytes, allowed are 131,072 to "),
    ('heap_bytes = "2MiB"\nheap_bytes_max = "1MiB"', "2,097,152 bytes are more than heap_bytes_max allows, 1,048,576"),
    ("key_bytes_max = 0", "key_bytes_max: 0 bytes, at least 1 are needed"),
    ("request_ops_max = 0", "--request-ops-max"),
    ('threads = "many"', "--threads"),
    ('backend = "abacus"', "'abacus' is not one of"),
    ('gpus = "0,1"', "gpus=0,1 is of the backend cuda, and this one is cpu: add --backend cuda"),
    ('durability = "none"\ncommit = "journal"', "commit: a journal cannot be had with durability=none: choose undo"),
    ('listen = "nonsense"', "listen: 'nonsense' is not HOST:PORT"),
    ('metrics = "nonsense"', "metrics: 'nonsense' is not HOST:PORT"),
    ('resp = "nonsense"', "resp: 'nonsense' is not HOST:PORT"),
    ('listen = "0.0.0.0:7171"', "listen: other machines reach 0.0.0.0:7171, and there is no TLS"),
    ('metrics = "127.0.0.1:7171"', "metrics: 127.0.0.1:7171 is that of --listen: each has a port of its own"),
    ('door = "native"', "gpkvs.toml: there is one door since 0.2: remove the setting door"),
    ('memory_max = "1MiB"', "memory_max: 1,048,576 bytes, a server needs at least 67,108,864"),
    ("message_bytes_max = 1", "message_bytes_max: 1 bytes, allowed are 65,536 to 2,147,483,647"),
    ("audit_bytes_max = 1", "audit_bytes_max: 1 bytes, at least 65,536 are needed"),
    ('tls_cert = "cert.pem"', "tls_key: TLS takes a certificate (--tls-cert) and its key (--tls-key)"),
    ('tls_client_ca = "ca.pem"', "tls_cert: TLS takes a certificate"),
]
# What is wrong with a file that is named.
WRONG_FILES = [
    ('tls_cert = "/none/cert"\ntls_key = "/none/key"', "tls_cert: cannot read /none/cert: No such file or directory"),
    ('users = "/none/users"', "cannot read /none/users: No such file or directory: restore it"),
    ('audit_log = "/none/log"', "audit_log: cannot write /none/log: No such file or directory"),
    ('ready_file = "/none/ready"', "ready_file: cannot write /none/ready: No such file or directory"),
]


def refused(*command: str) -> list[str]:
    done = CliRunner().invoke(app, command, env=NO_VARIABLES)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    lines = done.stderr.splitlines()
    assert all(line.startswith("gpkvs: ") for line in lines)
    return lines


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_what_serve_refuses_is_refused_by_both_alike(
    tmp_path: Path, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serves(_: object) -> None:
        pytest.fail("it would serve")

    monkeypatch.setattr(serve, "hand_over", serves)
    file = tmp_path / "gpkvs.toml"
    file.write_text(text)
    given = "--config", str(file), "--data", str(tmp_path / "s")
    (line,) = refused("config", "show", *given)
    assert words in line
    options = "; there are "  # of these, the one command has some more
    assert [line.partition(options)[0]] == [line.partition(options)[0] for line in refused("serve", *given)]
    assert not (tmp_path / "s").exists()


@pytest.mark.own_python
@pytest.mark.parametrize(("text", "words"), WRONG_FILES)
def test_a_wrong_file_is_said_by_both_alike(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text(text)
    given = "--config", str(file), "--data", str(tmp_path / "s"), "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"
    (shown,) = refused("config", "show", *given)
    assert words in shown
    served = run_gpkvs("serve", *given, "--log-level", "error")
    assert (served.returncode, served.stderr.decode().splitlines()) == (2, [shown])


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "hand_over", lambda _: pytest.fail("it would serve"))
    lines: dict[str, str] = {}
    for text, words in (*WRONG, *WRONG_FILES):
        names = [line.partition(" = ")[0].replace("tls_key", "tls_cert") for line in text.splitlines()]
        # One wrong value for each setting, and none that changes what another one means.
        other = any(f"{name} = " in line for name in names for line in lines)
        if not (other or {"heap_bytes_max", "tls_client_ca"} & {*names}):
            lines[text] = words
    assert len(lines) > 18
    file = tmp_path / "gpkvs.toml"
    file.write_text("\n".join(lines))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    given = "--config", str(file), "--data", str(tmp_path / "other"), "--thread", "3", "word", "--log-level=loud"
    more = "there is no option '--thread'", "nearest names are --threads", "the word 'word' belongs", "--log-level"
    for command in (["config", "show"], ["serve"]):
        said = "\n".join(refused(*command, *given))
        for words in (*lines.values(), *more):
            assert words in said
    assert "holds no store" in "\n".join(refused("config", "show", *given))


def test_what_serve_says_of_wrong_settings_is_json_where_its_log_is(tmp_path: Path) -> None:
    done = run_gpkvs("serve", "--log-format", "json", "--listen", "x", "--metrics", "y", "--data", str(tmp_path / "s"))
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["message"][:6]) for line in said] == [("failed", "listen"), ("failed", "metric")]


def test_a_journal_cannot_be_left_off(tmp_path: Path) -> None:
    gpkvs.open(tmp_path / "s", commit="journal").close()
    given = "--data", str(tmp_path / "s"), "--durability", "none"
    (line,) = refused("config", "show", *given)
    assert "durability: the store has a journal, which is never off" in line
    served = run_gpkvs("serve", *given, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--log-level", "error")
    assert (served.returncode, served.stderr.decode().splitlines()) == (2, [line])


@pytest.mark.parametrize("kept", ["undo", "journal"])
def test_what_an_open_store_does_not_follow(tmp_path: Path, kept: Any, caplog: pytest.LogCaptureFixture) -> None:
    path, other = tmp_path / "s", "journal" if kept == "undo" else "undo"
    given = {"index_bytes": 1 << 20, "heap_bytes": 8 << 20, f"{other}_bytes".replace("undo", "log"): 4 << 20}
    options = [word for name, size in given.items() for word in (f"--{name.replace('_', '-')}", str(size))]
    wrong = [*options, "--commit", other, "--format", "4"]
    # The store is open all the time, as a server has it.
    with gpkvs.open(path, commit=kept, store_format="3", index_bytes=1 << 16, heap_bytes=1 << 20) as store:
        store.set(b"k", b"v")
        for _ in range(100):  # the store's own threads may still be writing zeros ahead
            before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
            right = show("--data", str(path))
            said = show("--data", str(path), *wrong, status=1)
            after = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
            if after == before:
                break
        assert after == before
    assert right["faults"] == []
    assert right["settings"]["index_bytes"]["meaning"] == "the store has 64KiB"
    assert (right["store"]["commit"], right["store"]["format"], right["store"]["heap_bytes"]) == (kept, "3", 1 << 20)
    assert {fault["name"] for fault in said["faults"]} == {"commit", "format", *given}
    # An opening logs the same.
    caplog.set_level(logging.INFO, "gpkvs")
    caplog.clear()
    Store(path, StoreConfig(commit=other, store_format="4", **given)).close()  # type: ignore[arg-type]
    logged = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "setting_ignored"]
    assert [fault["text"] for fault in said["faults"]] == logged


def test_a_smaller_heap_than_the_store_has(tmp_path: Path) -> None:
    gpkvs.open(tmp_path / "s", heap_bytes=1 << 20).close()
    said = show("--data", str(tmp_path / "s"), "--heap-bytes-max", "256KiB", status=1)
    assert [fault["name"] for fault in said["faults"]] == ["heap_bytes_max"]


def test_a_size_of_the_other_commit_is_a_note(tmp_path: Path) -> None:
    gpkvs.open(tmp_path / "s", commit="undo").close()
    (fault,) = show("--data", str(tmp_path / "s"), "--journal-bytes", "8MiB")["faults"]
    assert fault["name"] == "journal_bytes"


def test_a_store_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "s"
    gpkvs.open(path).close()
    root = bytearray((path / "root").read_bytes())
    root[ROOT_OFFSETS[0] + 60] ^= 1
    (path / "root").write_bytes(root)
    assert show("--data", str(path))["store"]  # as while a server writes one copy
    root[ROOT_OFFSETS[1] + 60] ^= 1
    (path / "root").write_bytes(root)
    said = show("--data", str(path), status=1)
    assert "both copies are damaged" in said["faults"][0]["text"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    assert "holds no store" in show("--data", str(tmp_path / "other"), status=1)["faults"][0]["text"]


def test_what_people_see(tmp_path: Path) -> None:
    given = ["config", "show", "--changed", "--listen", "[::1]:7171", "--index-bytes", "64MiB", "--data", str(tmp_path)]
    done = CliRunner().invoke(app, given, env=NO_VARIABLES)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1:4] == [
        ["data", str(tmp_path), "flag", "restart"],
        ["listen", "[::1]:7171", "flag", "restart"],
        ["index_bytes", "64MiB", "flag", "new", "store"],
    ]
    assert done.stdout.splitlines()[4] == f"there is no store in {tmp_path} yet: gpkvs serve makes one"
    assert done.exit_code == 0
    nothing = CliRunner().invoke(app, ["config", "show", "--changed"], env=NO_VARIABLES)
    assert nothing.stdout.splitlines()[0] == "every setting has its default"
    assert isinstance(typer.main.get_command(app), Gpkvs)
