"""A ``gpkvs ycsb`` process: load that comes from another process, as in real life."""

from __future__ import annotations

import re
import subprocess
from types import TracebackType

from gpkvs.errors import GpkvsError
from gpkvs.recovery.server_process import GPKVS

_THREADS = 16


class YcsbError(GpkvsError):
    """YCSB failed, or some of its operations did; what it printed is in the message."""


class YcsbProcess:
    """One phase of YCSB's workload a, running; leaving the context ends it.

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
        self._phase = phase
        command = [*GPKVS, "ycsb", phase, "--workload", "a", "--threads", str(_THREADS), "--target", target]
        command += ["-p", f"recordcount={records}", "-p", f"operationcount={operations}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def finish(self) -> float:
        """Wait for its end; return its operations per second.

        Raises
        ------
        YcsbError
            If it or any of its operations failed.
        """
        output, errors = self._process.communicate()
        rate = re.search(r"^\[OVERALL\], Throughput\(ops/sec\), ([0-9.]+)", output, re.MULTILINE)
        failed = re.findall(r"^\[.*-FAILED\], Operations, .*$", output, re.MULTILINE)
        status = self._process.returncode
        if status != 0 or rate is None or failed:
            raise YcsbError("\n".join([f"gpkvs ycsb {self._phase} failed (exit status {status})", *failed, errors]))
        return float(rate[1])

    def __enter__(self) -> YcsbProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()
