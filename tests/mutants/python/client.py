"""Mistakes in the client: what is repeated, deadlines, who is woken."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SYNC, _PIPELINE, _GATHER = "client/sync.py", "client/pipeline.py", "client/gather.py"
_SENDING, _SEVERAL = "client/sending.py", "client/several.py"
_TESTS = "client/test_gather.py::"

MUTANTS = (
    Mutant(
        "write-repeated",
        "client/retry.py",
        "self.transient and not (is_write and self.executed)",
        "self.transient",
        "a write whose response was lost is done twice",
        ("client/test_retry.py::test_every_status_means_one_thing",),
    ),
    Mutant(
        "reads-among-writes",
        "gpkvs/operations.py",
        "return not READS.issuperset(self._ops)",
        "return READS.isdisjoint(self._ops)",
        "a batch that writes and reads counts as one that reads: it is done twice when its response is lost",
        (f"{_TESTS}test_a_batch_whose_response_is_lost_is_not_repeated_unless_it_only_reads",),
    ),
    Mutant(
        "blocking-batch-repeated",
        _SYNC,
        "changes=operations.changes",
        "changes=False",
        "the blocking client does a write twice when its response was lost",
        ("client/test_sync.py::test_a_write_whose_response_is_lost_is_not_repeated",),
    ),
    Mutant(
        "blocking-columns-repeated",
        _SYNC,
        "changes=batch.changes",
        "changes=False",
        "the blocking client does columns of writes twice when their response was lost",
        ("client/test_sync.py::test_a_write_whose_response_is_lost_is_not_repeated",),
    ),
    Mutant(
        "blocking-table-made-for-sure",
        _SYNC,
        "self._admin.CreateTable, request, timeout, is_write=True",
        "self._admin.CreateTable, request, timeout, is_write=False",
        "a table that may have been made is told not to have been",
        ("client/test_sync.py::test_whether_a_table_was_made_or_dropped_is_unknown_when_the_response_is_lost",),
    ),
    Mutant(
        "blocking-past-the-deadline",
        _SYNC,
        " or time.monotonic() + delay_s >= deadline",
        "",
        "the blocking client sleeps past its deadline, and then hides why it repeated",
        ("client/test_sync.py::test_a_deadline_ends_repeating_and_the_reason_is_told",),
    ),
    Mutant(
        "queue-not-woken",
        _SENDING,
        "        if self._has_waiting():\n            self._flush_soon()",
        "        pass",
        "calls that came while a message was in flight are never sent",
        (f"{_TESTS}test_what_is_called_while_a_message_is_in_flight_makes_the_next_one",),
    ),
    Mutant(
        "deadline-of-the-hastiest",
        _GATHER,
        "max(call.deadline for call in calls)",
        "min(call.deadline for call in calls)",
        "a call fails at the deadline of another one",
        (f"{_TESTS}test_a_patient_call_outlives_a_hasty_one_in_its_message",),
    ),
    Mutant(
        "message-one-operation-over",
        _GATHER,
        "len(calls) < self._config.ops_max",
        "len(calls) <= self._config.ops_max",
        "messages pass their bound",
        (f"{_TESTS}test_a_message_is_bounded_by_operations_and_bytes",),
    ),
    Mutant(
        "timer-of-the-first-call",
        _GATHER,
        "if deadline < self._sweep_at:",
        "if self._sweep_at == inf:",
        "a call with an earlier deadline than those before it fails only at theirs",
        (f"{_TESTS}test_a_later_call_may_have_the_earlier_deadline",),
    ),
    Mutant(
        "failed-stream-keeps-room",
        _PIPELINE,
        "            if self._failure:\n                self._room.release()\n",
        "            if self._failure:\n",
        "after a stream has ended, senders wait for ever instead of being told",
        ("client/test_pipeline.py::test_every_send_after_the_end_is_refused",),
    ),
    Mutant(
        "failed-request-keeps-room",
        _PIPELINE,
        "        self._room.release()\n        self._give(sent, failure",
        "        self._give(sent, failure",
        "a sender that waits for room when the stream ends waits for ever",
        ("client/test_pipeline.py::test_a_sender_that_waits_for_room_is_told_of_the_end",),
    ),
    Mutant(
        "conflict-may-be-executed",
        "client/retry.py",
        "int(found) if found else None), False",
        "int(found) if found else None), True",
        "a conflict leaves its caller in doubt whether the request was executed",
        ("client/test_options.py::test_a_conflict_names_the_check_and_is_not_repeated",),
    ),
    Mutant(
        "failures-one-off",
        _SEVERAL,
        " if number in failures else next(cut)",
        " if number not in failures else next(cut)",
        "a request that failed is told that it was done",
        ("client/test_several.py::test_requests_of_different_shapes_share_messages",),
    ),
    Mutant(
        "reads-of-any-size",
        _SEVERAL,
        "self._value_bytes * request.ops.count(_GET)",
        "0",
        "requests that read much are joined to one whose response is refused",
        ("client/test_several.py::test_reads_that_bring_much_go_in_several_messages",),
    ),
    Mutant(
        "results-of-the-neighbour",
        _SEVERAL,
        "        op, value = op_end, value_end",
        "        op = op_end",
        "a request that reads gets the values of another",
        ("client/test_several.py::test_requests_that_only_read_are_one_request_and_each_fails_by_itself",),
    ),
)
