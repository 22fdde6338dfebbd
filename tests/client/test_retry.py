"""What is repeated, what is raised, and how long is waited."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from gpkvs import client
from gpkvs.client.errors import (
    AccessDeniedError,
    ClientError,
    DeadlineError,
    LoginError,
    NotExecutedError,
    OutcomeUnknownError,
    ServerBusyError,
    ServerError,
    UnavailableError,
)
from gpkvs.client.request_id import request_id
from gpkvs.client.retry import RetryPolicy, classify
from gpkvs.errors import CorruptRecordError, GpkvsError, InvalidArgumentError, NoSpaceError, UnknownTableError
from gpkvs.proto.metadata import REQUEST_ID_KEY

NOT_EXECUTED = {"gpkvs-executed": "no"}


def full(resource: str) -> dict[str, str]:
    return {**NOT_EXECUTED, "gpkvs-full": resource}


REFUSED_CONNECTION = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host"
)

# status, details, trailing metadata -> the error of a read, read repeated, write repeated, write's outcome unknown
CASES: list[tuple[StatusCode, str, dict[str, str], type[GpkvsError], bool, bool, bool]] = [
    (StatusCode.UNAVAILABLE, "stopping", NOT_EXECUTED, UnavailableError, True, True, False),
    (StatusCode.UNAVAILABLE, REFUSED_CONNECTION, {}, UnavailableError, True, True, False),
    (StatusCode.UNAVAILABLE, "Socket closed", {}, UnavailableError, True, False, True),
    (StatusCode.UNAVAILABLE, "Socket closed", {"gpkvs-executed": "yes"}, UnavailableError, True, False, True),
    (StatusCode.RESOURCE_EXHAUSTED, "queue full: later", full("queue"), ServerBusyError, True, True, False),
    (StatusCode.RESOURCE_EXHAUSTED, "memory full: read", full("memory"), ServerBusyError, True, True, False),
    (StatusCode.RESOURCE_EXHAUSTED, "heap full: delete", full("heap"), NoSpaceError, False, False, False),
    (StatusCode.RESOURCE_EXHAUSTED, "in other words", full("attic"), NoSpaceError, False, False, False),
    (StatusCode.RESOURCE_EXHAUSTED, "from a proxy", {}, ServerBusyError, True, False, True),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "SERVER: Received message larger than max (9 vs. 8)",
        {},
        InvalidArgumentError,
        False,
        False,
        False,
    ),
    (StatusCode.INVALID_ARGUMENT, "operation 3, keys: empty", NOT_EXECUTED, InvalidArgumentError, False, False, False),
    (StatusCode.NOT_FOUND, "table: no table 't'", NOT_EXECUTED, UnknownTableError, False, False, False),
    (StatusCode.UNAUTHENTICATED, "who are you", {}, LoginError, False, False, False),
    (StatusCode.PERMISSION_DENIED, "not you", {}, AccessDeniedError, False, False, False),
    (StatusCode.UNIMPLEMENTED, "Method not found!", {}, ServerError, False, False, False),
    (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", {}, DeadlineError, False, False, True),
    (StatusCode.DEADLINE_EXCEEDED, "it waited", NOT_EXECUTED, DeadlineError, False, False, False),
    (StatusCode.DATA_LOSS, "rotten", {}, CorruptRecordError, False, False, True),
    (StatusCode.INTERNAL, "bug", {}, ServerError, False, False, True),
    (StatusCode.UNKNOWN, "bug", {}, ServerError, False, False, True),
    (StatusCode.CANCELLED, "", {}, ServerError, False, False, True),
]


@pytest.mark.parametrize(
    ("code", "details", "trailing", "kind", "read_repeated", "write_repeated", "write_unknown"), CASES
)
def test_every_status_means_one_thing(
    code: StatusCode,
    details: str,
    trailing: dict[str, str],
    kind: type[GpkvsError],
    read_repeated: bool,
    write_repeated: bool,
    write_unknown: bool,
) -> None:
    failure = classify(code, details, trailing, "host:1")
    assert type(failure.raised(is_write=False)) is kind
    assert failure.may_repeat(is_write=False) is read_repeated
    assert failure.may_repeat(is_write=True) is write_repeated
    assert type(failure.raised(is_write=True)) is (OutcomeUnknownError if write_unknown else kind)


@pytest.mark.parametrize("code", [StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED])
def test_a_stream_whose_caller_was_removed_may_have_executed_its_requests(code: StatusCode) -> None:
    assert isinstance(classify(code, "gone", {}, "host:1", is_stream=True).raised(is_write=True), OutcomeUnknownError)
    refused = classify(code, "who are you", NOT_EXECUTED, "host:1", is_stream=True)
    assert isinstance(refused.raised(is_write=True), AccessDeniedError)


def test_a_write_to_a_name_that_no_host_has_was_never_sent() -> None:
    with (
        client.Client("a..b:1", retry=RetryPolicy(attempts_max=1)) as one,
        pytest.raises(UnavailableError, match="cannot connect"),
    ):
        one.set(b"k", b"v", timeout=5)


def test_the_servers_words_keep_their_parts() -> None:
    invalid = classify(StatusCode.INVALID_ARGUMENT, "operation 3, keys: too long", NOT_EXECUTED, "").error
    assert isinstance(invalid, InvalidArgumentError)
    assert (invalid.index, invalid.field, str(invalid)) == (3, "keys", "operation 3, keys: too long")
    no_space = classify(StatusCode.RESOURCE_EXHAUSTED, "heap full: delete keys", full("heap"), "").error
    assert isinstance(no_space, NoSpaceError)
    assert (no_space.resource, str(no_space)) == ("heap", "heap full: delete keys")


def test_only_what_one_operation_can_cause_splits_a_message() -> None:
    causes = {
        (code, details) for code, details, trailing, *_ in CASES if classify(code, details, trailing, "").is_of_one
    }
    assert {code.name for code, _ in causes} == {"INVALID_ARGUMENT", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"}


def test_each_caller_gets_an_error_of_its_own() -> None:
    failure = classify(StatusCode.RESOURCE_EXHAUSTED, "heap full: delete keys", full("heap"), "")
    first, second = failure.raised(is_write=True), failure.raised(is_write=True)
    assert first is not second
    assert str(first) == str(second) == "heap full: delete keys"
    assert isinstance(second, NoSpaceError)
    assert second.resource == "heap"


def test_pauses_double_up_to_a_maximum() -> None:
    steady = RetryPolicy(delay_ms_first=10, delay_ms_max=100, jitter=0)
    assert [steady.delay_s(attempt) for attempt in range(1, 7)] == [0.01, 0.02, 0.04, 0.08, 0.1, 0.1]
    assert steady.delay_s(1 << 30) == 0.1  # who waits for hours gets there
    shaken = RetryPolicy(delay_ms_first=10, delay_ms_max=100, jitter=0.5)
    delays = [shaken.delay_s(4) for _ in range(1000)]
    assert 0.04 <= min(delays) < max(delays) <= 0.08


def test_errors_say_whether_something_was_written() -> None:
    raised = [getattr(client, name) for name in client.__all__ if name.endswith("Error")]
    assert client.__all__ == sorted(client.__all__)
    for kind in raised:
        assert issubclass(kind, GpkvsError)
        if issubclass(kind, ClientError) and kind is not ClientError:
            assert issubclass(kind, NotExecutedError) is (kind is not OutcomeUnknownError)


def test_how_long_the_usual_policy_goes_on_is_documented() -> None:
    longest_s = sum(RetryPolicy(jitter=0).delay_s(attempt) for attempt in range(1, RetryPolicy.attempts_max))
    shortest_s = longest_s * (1 - RetryPolicy.jitter)
    assert f"{shortest_s:.1f} to {longest_s:.1f} s" in (RetryPolicy.__doc__ or "")


@pytest.mark.parametrize("is_write", [False, True])
def test_an_error_has_the_id_by_which_the_server_names_the_call(is_write: bool) -> None:
    trailing = {REQUEST_ID_KEY: "mine"}
    error = classify(StatusCode.INTERNAL, "failed", trailing, "server:1").raised(is_write=is_write)
    assert error.request_id == "mine"
    assert classify(StatusCode.INTERNAL, "failed", {}, "server:1").raised(is_write=is_write).request_id == ""
    with request_id("the-caller's"):
        lost = classify(StatusCode.INTERNAL, "failed", {}, "server:1").raised(is_write=is_write)
    assert lost.request_id == "the-caller's"
