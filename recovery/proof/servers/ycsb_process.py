"""A ``gpkvs ycsb`` process: load from another process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.servers.server_process import GPKVS, environment_of_run

THREADS = 16
_EXIT_NOT_RUN = 2
# The codes of lost records, and of records with wrong contents.
_WRONG = ("Return=NOT_FOUND", "Return=UNEXPECTED_STATE")
_FIRST_ERROR = re.compile(r"^gpkvs: first (\w+): (.*)$", re.MULTILINE)
# The errors with which operations may fail while there is no server.
_WHILE_AWAY = ("OutcomeUnknownError", "UnavailableError", "DeadlineError")


class YcsbError(GpkvsError):
    """YCSB failed, or some of its operations did; the message has its output."""


@dataclass(frozen=True)
class YcsbReport:
    """The figures that YCSB measured."""

    operations: int  # successful ones
    failed: int  # because the server was away
    verified: int  # records whose every byte was compared with what was loaded
    operations_per_second: float
    latency_us_max: int


class YcsbProcess:
    """One phase of YCSB's workload a, which verifies all that it reads. The end of the context kills the process.

    Parameters
    ----------
    phase
        ``load`` or ``run``.
    target
        The server's gRPC address.
    records, operations
        YCSB's recordcount and operationcount.
    """

    def __init__(self, phase: str, target: str, records: int, operations: int) -> None:
        command = [*GPKVS, "ycsb", phase, "--workload=a", f"--threads={THREADS}", f"--target={target}", "--json"]
        for setting in ("dataintegrity=true", f"recordcount={records}", f"operationcount={operations}"):
            command += ["-p", setting]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `__exit__` closes it
        self._process = subprocess.Popen(
            [*command, "--status", "-p", "status.interval=1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment_of_run(),
        )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def is_at_work(self) -> bool:
        """Whether its clients have begun, or it said why not: a line a second tells of the work."""
        return os.fstat(self._errors.fileno()).st_size > 0

    def interrupt(self) -> None:
        """Ask the process to stop and report; it must be at work."""
        self._process.terminate()

    def finish(self) -> YcsbReport:
        """Wait for the end of the process; return its report.

        Raises
        ------
        YcsbError
            If YCSB could not run, missed a record, or read a record with wrong contents.
        """
        output, _ = self._process.communicate()
        self._errors.seek(0)
        errors = self._errors.read()
        if not output or self._process.returncode >= _EXIT_NOT_RUN:
            raise YcsbError(f"gpkvs ycsb could not run (exit status {self._process.returncode}): {errors}")
        groups: dict[str, dict[str, Any]] = json.loads(output)
        wrong = [
            f"[{name}] {code}: {group[code]}" for name, group in groups.items() for code in _WRONG if group.get(code)
        ]
        wrong += [f"{kind}: {text}" for kind, text in _FIRST_ERROR.findall(errors) if kind not in _WHILE_AWAY]
        if wrong:
            raise YcsbError("\n  ".join(["YCSB found something wrong:", *wrong]))
        done = [groups[name] for name in ("INSERT", "READ", "UPDATE") if groups.get(name, {}).get("Operations")]
        return YcsbReport(
            operations=sum(group["Operations"] for group in done),
            failed=sum(group["Operations"] for name, group in groups.items() if name.endswith("-FAILED")),
            verified=groups.get("VERIFY", {}).get("Return=OK", 0),
            operations_per_second=groups["OVERALL"]["Throughput(ops/sec)"],
            latency_us_max=max((group["MaxLatency(us)"] for group in done), default=0),
        )

    def __enter__(self) -> YcsbProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._errors, self._process:
            self._process.kill()
