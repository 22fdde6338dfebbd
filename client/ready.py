"""Waiting until a server's health service says that it serves."""

from __future__ import annotations

import time
from math import inf

import grpc
from grpc_health.v1 import health_pb2

from gpkvs.client.errors import TlsError, UnavailableError
from gpkvs.client.retry import classify_error

QUESTION = health_pb2.HealthCheckRequest()

_QUESTION_S_MAX, _PAUSE_S = 1.0, 0.05


class ReadyWait:
    """How long to go on asking, and what was heard last.

    Parameters
    ----------
    target
        The server's address, for the error.
    timeout_s
        None: for ever; 0: once.
    """

    def __init__(self, target: str, timeout_s: float | None) -> None:
        self._target, self._timeout_s = target, timeout_s
        self._deadline = inf if timeout_s is None else time.monotonic() + timeout_s
        self._heard = "nothing"

    @property
    def question_s(self) -> float:
        """Seconds for the next question; one without any time left is asked all the same."""
        left_s = self._deadline - time.monotonic()
        return min(left_s, _QUESTION_S_MAX) if left_s > 0 else _QUESTION_S_MAX

    def is_over(self, heard: health_pb2.HealthCheckResponse | grpc.RpcError) -> bool:
        """Take what came of a question; return whether the server is ready.

        Raises
        ------
        TlsError
            If no TLS connection can be made: asking again does not help.
        """
        if isinstance(heard, grpc.RpcError):
            failure = classify_error(heard, self._target)
            if isinstance(failure.error, TlsError):
                raise failure.error
            self._heard = str(failure.error)
            return False
        self._heard = health_pb2.HealthCheckResponse.ServingStatus.Name(heard.status)
        return bool(heard.status == health_pb2.HealthCheckResponse.SERVING)

    def pause_s(self) -> float:
        """Return the pause before the next question.

        Raises
        ------
        UnavailableError
            If there is no time for both.
        """
        if time.monotonic() + _PAUSE_S >= self._deadline:
            raise UnavailableError(
                f"{self._target} is not ready after {self._timeout_s:g} s; last heard: {self._heard}"
            )
        return _PAUSE_S
