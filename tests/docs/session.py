"""A reader's session: one shell and one Python for all blocks of a document, in a throw-away copy of the repository."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest

from tests.docs.blocks import Block

READER = Path(__file__).parent / "reader.py"
GRPC, METRICS = "127.0.0.1:7171", "127.0.0.1:9171"  # the addresses that the documents show

# Commands come as text that ends with a zero byte; each is answered with its status.
_SHELL = r'while IFS= read -r -d "" command; do eval "$command" </dev/null >>"$LOG" 2>&1; echo "$?"; done'
_READY = 'while [ ! -e "$READY" ]; do kill -0 $! || break; sleep 0.05; done; [ -e "$READY" ]'
_STOP = 'failed=0; for job in $(jobs -pr); do kill "$job"; wait "$job" || failed=$?; done; (exit "$failed")'

_OURS = re.compile(r"(\S*/)?gpkvs (\w+)")
_FREE_PORTS = 'GPKVS_LISTEN=127.0.0.1:0 GPKVS_METRICS=127.0.0.1:0 GPKVS_READY_FILE="$READY"'
_PLACES = ("/tmp/", "/mnt/pmem/")  # where documents put stores; the session has a folder instead


class Session:
    """Runs blocks as a reader would.

    Servers run in the background, on free ports, until the session ends; later blocks find them where the documents
    say. Directories in /tmp lie in the session's folder.
    """

    def __init__(self, folder: Path, checkout: Path, tools: Path) -> None:
        self.folder = folder
        self._log = folder / "log"
        self._ready = folder / "ready"
        self._addresses: dict[str, str] = {}
        programs = checkout / ".venv" / "bin"
        environment = os.environ | {
            "PATH": f"{programs}:{tools}:{os.environ['PATH']}",
            "LOG": str(self._log),
            "READY": str(self._ready),
            "TMPDIR": str(folder),
        }
        self._shell = self._start(["bash", "-c", _SHELL], checkout, environment, subprocess.DEVNULL)
        with self._log.open("ab") as log:
            self._python = self._start([str(programs / "python"), "-P", str(READER)], checkout, environment, log)

    def run(self, block: Block, command: str = "", *, seconds_max: float) -> None:
        """Run a command of a shell block, or a Python block; fail if it fails."""
        if block.language == "python":
            file = self.folder / f"line_{block.line}.py"
            text = json.dumps({"text": self._placed(block.text), "file": str(file)}) + "\n"
            answer = self._ask(self._python, text, seconds_max)
        else:
            answer = self._run_command(self._placed(command), seconds_max)
        if answer not in ("0", "ok"):
            pytest.fail(f"{block}: {command or 'this block'}: {answer or 'no answer'}\n{self.output()}", pytrace=False)

    def stop_servers(self) -> None:
        """Stop what runs in the background; it must end in order."""
        status = self._ask(self._shell, _STOP + "\0", 60)
        assert status == "0", f"a server ended with status {status}\n{self.output()}"

    def close(self) -> None:
        """Leave no process behind."""
        for process in (self._shell, self._python):
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def output(self) -> str:
        """Return the end of what was printed."""
        return self._log.read_text()[-4000:]

    def _run_command(self, command: str, seconds_max: float) -> str:
        with self._log.open("a") as log:
            log.write(f"$ {command}\n")
        found = _OURS.match(command)
        if not found:
            return self._ask(self._shell, command + "\0", seconds_max)
        if found[2] == "serve":
            return self._serve(command)
        if found[2] == "top":  # until Ctrl-C
            command = f"GPKVS_METRICS_TARGET={self._address(METRICS)} timeout --preserve-status -s INT 3 {command}"
        return self._ask(self._shell, f"GPKVS_TARGET={self._address(GRPC)} {command}\0", seconds_max)

    def _serve(self, command: str) -> str:
        """Start a server, as in a terminal of its own, and wait until it serves."""
        self._ready.unlink(missing_ok=True)
        self._ask(self._shell, f"{_FREE_PORTS} {command.removesuffix('&')} &\0", 60)
        answer = self._ask(self._shell, _READY + "\0", 60)
        if answer == "0":
            self._addresses = dict(zip((GRPC, METRICS), self._ready.read_text().split(), strict=False))
        return answer

    def _address(self, shown: str) -> str:
        return self._addresses.get(shown, shown)

    def _placed(self, text: str) -> str:
        for place in _PLACES:
            text = text.replace(place, f"{self.folder}/")
        for shown, real in self._addresses.items():
            text = text.replace(shown, real)
        return text

    @staticmethod
    def _start(
        arguments: list[str], folder: Path, environment: dict[str, str], errors: int | IO[bytes]
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            arguments,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )

    @staticmethod
    def _ask(process: subprocess.Popen[str], text: str, seconds_max: float) -> str:
        """Give a process its next piece of work, and return the line that it answers; "" if there is none in time."""
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(text)
            process.stdin.flush()
        except BrokenPipeError:
            return ""
        if not select.select([process.stdout], [], [], seconds_max)[0]:
            return f"not done after {seconds_max:.0f} s"
        return process.stdout.readline().strip()
