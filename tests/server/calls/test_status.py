"""What a client is told of each error, and that a refusal is told as one: it may be sent again."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from gpkvs.errors import (
    CorruptRecordError,
    CorruptStoreError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    StoreClosedError,
    TableExistsError,
    UnknownTableError,
)
from gpkvs.server.access.audit import AuditError
from gpkvs.server.access.caller import ANYONE, LoginError
from gpkvs.server.access.rights import RightsError
from gpkvs.server.call_types import StatusCode
from gpkvs.server.calls.request_queue import ExpiredRequestError
from gpkvs.server.calls.status import status_of, tell
from gpkvs.server.gate import NotServingError
from gpkvs.server.signs.exporter import Metrics


@pytest.mark.parametrize(
    ("error", "code", "refused"),
    [
        (UnknownTableError("no such table"), StatusCode.NOT_FOUND, "unknown_table"),
        (TableExistsError("there is one"), StatusCode.ALREADY_EXISTS, "table_exists"),
        (InvalidArgumentError("too long"), StatusCode.INVALID_ARGUMENT, "invalid"),
        (NoSpaceError("heap", "delete keys"), StatusCode.RESOURCE_EXHAUSTED, "heap_full"),
        (LoginError("log in", "missing"), StatusCode.UNAUTHENTICATED, "unauthenticated"),
        (RightsError(ANYONE, "write", "orders"), StatusCode.PERMISSION_DENIED, "permission_denied"),
        (AuditError("the audit log cannot be written"), StatusCode.UNAVAILABLE, "audit"),
        (NotServingError("the server is stopping"), StatusCode.UNAVAILABLE, "not_serving"),
        (ExpiredRequestError("it waited too long"), StatusCode.DEADLINE_EXCEEDED, "deadline"),
        # Whether these were executed is not known.
        (CorruptRecordError("rotten"), StatusCode.DATA_LOSS, ""),
        (CorruptStoreError("flag", "rotten", path=Path("root")), StatusCode.DATA_LOSS, ""),
        (StoreClosedError("is closed"), StatusCode.UNAVAILABLE, ""),
        (GpkvsError("anything else"), StatusCode.INTERNAL, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, GpkvsError) else "",
)
def test_every_error_has_its_status(error: GpkvsError, code: StatusCode, refused: str) -> None:
    assert status_of(error) == (code, refused)


def test_the_statuses_are_those_of_grpc() -> None:
    assert {code.name: code.value for code in StatusCode} == {code.name: code.value for code in grpc.StatusCode}


@pytest.mark.parametrize("error", [CorruptRecordError("rotten"), IndexError("a bug")])
def test_the_log_names_the_call_that_failed(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    tell(error, "gpkvs.v1.KV.Get", Metrics(), "mine")
    [record] = caplog.records
    assert "(request mine)" in record.getMessage()
    assert vars(record)["request_id"] == "mine"
    caplog.clear()
    tell(UnknownTableError("no such table"), "gpkvs.v1.KV.Get", Metrics(), "mine")
    assert not caplog.records  # a client's mistake
