"""Foreign clients against the native door, plain and with TLS and a token: ``python -m tests.foreign.run``.

grpclib comes with what tests need; nice-grpc is installed by npm, into a folder of its own; gRPC for Ruby is
Debian's ruby-grpc with ruby-grpc-tools. A client whose tools are missing is left out and named. What it finds is
printed as JSON; exit status 1 if a client did not get what it should.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, server_options
from tests.examples.node import node_tools
from tests.server.access.guarded import Guarded
from tests.serving import Server

REPOSITORY = Path(__file__).parents[2]
FOREIGN = Path(__file__).parent
PROTOS = REPOSITORY / "proto"
SECONDS_MAX = 120

INVALID_ARGUMENT, DEADLINE_EXCEEDED, CANCELLED = 3, 4, 1
EXPECTED = {
    "get": "value",
    "batch": [7, 7],
    "refused": [INVALID_ARGUMENT, "key: a key of 0 bytes, allowed are 1 to 4,096 (key_bytes_max)"],
    "pipeline": 100,
    "deadline": DEADLINE_EXCEEDED,
    "cancel": CANCELLED,
    "after": "value",
}

Command = list[str] | None


def _grpclib(_: Path) -> Command:
    if importlib.util.find_spec("grpclib") is None:
        return None
    return [sys.executable, "-m", "tests.foreign.grpclib_client"]


def _nice_grpc(folder: Path) -> Command:
    tools = node_tools(folder / "tools")
    shutil.copytree(FOREIGN / "nicegrpc", folder / "nicegrpc")
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    install = [str(tools / "npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    if subprocess.run(install, cwd=folder / "nicegrpc", env=environment, stdout=sys.stderr, check=False).returncode:
        return None
    return [str(tools / "node"), str(folder / "nicegrpc" / "client.js")]


def _ruby(folder: Path) -> Command:
    compiler = shutil.which("grpc_tools_ruby_protoc")
    if not compiler or not shutil.which("ruby"):
        return None
    made = folder / "ruby"
    made.mkdir()
    subprocess.run([compiler, f"-I{PROTOS}", f"--ruby_out={made}", f"--grpc_out={made}", "v1/kv.proto"], check=True)
    return ["ruby", str(FOREIGN / "client.rb")]


CLIENTS: dict[str, Callable[[Path], Command]] = {"grpclib": _grpclib, "nice-grpc": _nice_grpc, "ruby": _ruby}
_SHOWN = {"nice-grpc": lambda _: str(PROTOS / "v1" / "kv.proto"), "ruby": lambda folder: str(folder / "ruby")}


def wrong(command: list[str], environment: dict[str, str]) -> str:
    """Run a client; return what it got that it should not have, or "" for nothing."""
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=os.environ | environment, capture_output=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS_MAX} s"
    if done.returncode:
        return done.stderr.decode()
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return f"no JSON: {done.stdout.decode()}{done.stderr.decode()}"
    return ", ".join(f"{name}: {found.get(name)}" for name, text in EXPECTED.items() if found.get(name) != text)


def run(folder: Path) -> dict[str, Any]:
    """Run all clients against two servers."""
    plain = Server(folder / "plain", folder)
    guarded_folder = folder / "guarded"
    guarded_folder.mkdir()
    authority = Authority(guarded_folder)
    options = server_options(authority.issue("server", *HERE))
    accounts = Accounts(guarded_folder / "users.toml", root=Account(read=("*",), write=("*",), admin=("*",)))
    guarded = Guarded(accounts, guarded_folder, *options, authority=authority)
    token = guarded.headers["root"][0][1].removeprefix("Bearer ")
    access = {"GPKVS_CLIENT_TLS_CA": str(authority.path), "GPKVS_TOKEN": token}
    report: dict[str, Any] = {}
    try:
        for name, prepare in CLIENTS.items():
            command = prepare(folder)
            if command is None:
                report[name] = "left out: it is not installed"
                continue
            more = [_SHOWN[name](folder)] if name in _SHOWN else []
            port = guarded.server.target.rsplit(":", 1)[1]
            report[name] = {
                "plain": wrong([*command, plain.target, *more], {}) or "good",
                "TLS and a token": wrong([*command, f"localhost:{port}", *more], access) or "good",
            }
        plain.stop()
        guarded.close()
    finally:
        plain.kill()
        guarded.server.kill()
    return report


def main() -> None:
    """Run all clients, and print the report."""
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder))
    print(json.dumps(report, indent=1))
    if any(set(one.values()) != {"good"} for one in report.values() if isinstance(one, dict)):
        sys.exit(1)


if __name__ == "__main__":
    main()
