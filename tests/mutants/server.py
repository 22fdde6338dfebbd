"""Mistakes in the server: the queue, batches, streams, the stop."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BATCHER = "server/batcher.py"
_TESTS = "unit/test_batcher.py::"

MUTANTS = (
    Mutant(
        "put-back-reversed",
        _BATCHER,
        "self._queue.extendleft(reversed(rest))",
        "self._queue.extendleft(rest)",
        "requests that the engine left over run in reverse order: a client's later write loses against its earlier one",
        (f"{_TESTS}test_what_the_engine_leaves_over_keeps_the_order_of_arrival",),
    ),
    Mutant(
        "deadline-of-the-wall-clock",
        _BATCHER,
        "deadline = time.monotonic() + seconds_left",
        "deadline = time.time() + seconds_left",
        "requests run after their deadline",
        (f"{_TESTS}test_work_not_yet_in_a_batch_is_dropped",),
    ),
    Mutant(
        "busy-for-ever",
        _BATCHER,
        "            self._busy = False\n            return",
        "            return",
        "the first idle moment is the last: nothing starts a batch again",
        (f"{_TESTS}test_what_comes_after_an_idle_moment_starts_a_batch",),
    ),
    Mutant(
        "batch-one-operation-short",
        _BATCHER,
        "request.operations > ops_left",
        "request.operations >= ops_left",
        "batches never get as large as configured",
        (f"{_TESTS}test_batches_are_bounded_and_requests_stay_whole",),
    ),
    Mutant(
        "answer-to-who-has-gone",
        _BATCHER,
        "    if waiting.answer.done():\n        return\n",
        "",
        "a call that was cancelled in a batch takes the answers of those behind it",
        (f"{_TESTS}test_who_has_gone_does_not_take_the_answers_of_others",),
    ),
    Mutant(
        "error-to-the-first-only",
        _BATCHER,
        "                for waiting in batch:\n                    _give(waiting, error)",
        "                _give(batch[0], error)",
        "when the engine fails, all but one caller of the batch wait for ever",
        (f"{_TESTS}test_a_failing_engine_tells_everybody_in_the_batch",),
    ),
    Mutant(
        "idle-one-call-early",
        "server/gate.py",
        "if self._calls == 0:",
        "if self._calls <= 1:",
        "a stop does not wait for the last call under way",
        ("e2e/test_admission.py::test_gate_waits_for_calls_under_way",),
    ),
    Mutant(
        "work-for-who-has-gone",
        "server/pipeline.py",
        "request.answer.cancel()",
        "pass",
        "what a client that has gone had sent still runs, before those who wait for an answer",
        ("e2e/test_admission.py::test_a_stream_that_is_given_up_runs_no_further",),
    ),
    Mutant(
        "stream-room-lost",
        "server/pipeline.py",
        "self._room_bytes -= oldest.room_bytes",
        "pass",
        "a long stream stands still when it has sent as much as it may hold at once",
        ("e2e/test_pipeline.py::test_a_slow_reader_waits_alone",),
    ),
    Mutant(
        "late-is-an-internal-error",
        "server/status.py",
        '    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"),\n',
        "",
        "a request that was dropped at its deadline is told an internal error, as if it may have been executed",
        ("unit/test_status.py",),
    ),
    Mutant(
        "serving-metric-stays",
        "server/exporter.py",
        "self._serving.set(0)",
        "pass",
        "the dashboard shows a server that stops as serving",
        ("e2e/test_lifecycle.py::test_a_server_that_stops_says_so",),
    ),
    Mutant(
        "health-serving-to-the-end",
        "server/app.py",
        "await self._health.enter_graceful_shutdown()",
        "pass",
        "load balancers send calls to a server that refuses them",
        ("e2e/test_lifecycle.py::test_a_server_that_stops_says_so",),
    ),
    Mutant(
        "lengths-of-one-request-for-all",
        "server/codec.py",
        "if all(size == first_size and not column for",
        "if all(size == first_size for",
        "keys of a batch are cut at the wrong places",
        ("unit/test_codec.py::test_joined_requests_are_the_concatenated_batches",),
    ),
    Mutant(
        "answer-larger-than-a-message",
        "server/codec.py",
        "message_bytes_max - _ANSWER_BYTES - _ANSWER_BYTES_PER_OP * request_ops_max",
        "message_bytes_max - _ANSWER_BYTES",
        "the answer to a request with many operations and values does not fit a message and is lost",
        ("unit/test_serve_options.py::test_every_answer_fits_one_message",),
    ),
)
