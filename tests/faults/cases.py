"""The 40 faults that gpkvs is tested against, and the tests of each; ``python -m tests.faults`` runs them by number."""

from __future__ import annotations

from dataclasses import dataclass

NO_FEATURE = "not applicable: there is no such feature"


@dataclass(frozen=True)
class Case:
    """One fault.

    Parameters
    ----------
    fault
        What happens, and what must come of it.
    tests
        As pytest names them, without the folder ``tests/``; a name without parameters takes all of them.
    not_applicable
        Why there is no test of it, or of a part of it.
    needs_gpu
        Whether its tests run only where there is a GPU.
    journal
        Its tests in stores with a journal, where the fault means something else than with an undo log; () takes
        `tests`, which run with either.
    """

    fault: str
    tests: tuple[str, ...] = ()
    not_applicable: str = ""
    needs_gpu: bool = False
    journal: tuple[str, ...] = ()

    def tests_of(self, commit: str) -> tuple[str, ...]:
        """Return its tests in stores of a commit."""
        return self.journal if commit == "journal" and self.journal else self.tests


_FAILPOINTS = "recovery/startup/test_failpoints.py::"
_DAMAGE = "recovery/startup/test_damage.py::"
_SYSCALLS = "faults/test_syscalls.py::"
_JOURNAL_KILLS = "recovery/startup/test_journal_kills.py::"
_JOURNAL_DAMAGE = "recovery/startup/test_journal_damage.py::"
_JOURNAL_FAULTS = "recovery/startup/test_journal_faults.py::"
_JOURNAL_SYSCALLS = "faults/test_journal_syscalls.py::"
_SLOW = "faults/test_slow_disk.py::"
_CONSISTENT = (
    "recovery/proof/consistency/test_consistency.py::test_a_server_that_is_killed_is_strictly_serializable[journal]"
)
_LOGIN = "server/access/test_login.py::"
_STORE = "store/test_store.py::"
_FULL, _GROWTH = "engine/test_full_store.py::", "engine/tables/test_growth.py::"
_COMPACTION = "engine/space/test_compaction.py::"

CASES = {
    1: Case(
        "crash at any store or barrier: the whole batch or none",
        (
            f"{_FAILPOINTS}test_kill_between_phases",
            "recovery/startup/test_tables.py::test_a_batch_is_rolled_back_whole",
        ),
        journal=(
            f"{_JOURNAL_KILLS}test_kill",
            f"{_JOURNAL_FAULTS}test_a_batch_is_there_whole_or_not_at_all",
        ),
    ),
    2: Case(
        "crash after the commit, before the reply: present",
        (
            f"{_FAILPOINTS}test_kill_between_phases[before_idle_persist]",
            f"{_FAILPOINTS}test_kill_between_phases[before_reply]",
        ),
        journal=(
            f"{_JOURNAL_KILLS}test_kill[before_reply]",
            f"{_JOURNAL_FAULTS}test_a_batch_is_there_whole_or_not_at_all[before_reply-3-]",
        ),
    ),
    3: Case(
        "torn log record: ignored while the flag is idle, refused while it is active",
        (
            f"{_DAMAGE}test_damaged_idle_log_is_harmless",
            f"{_DAMAGE}test_damaged_active_log_is_refused_before_anything_is_undone",
        ),
        journal=(
            f"{_JOURNAL_DAMAGE}test_the_last_frame_is_taken_for_the_tail_of_a_crash",
            f"{_JOURNAL_DAMAGE}test_a_frame_that_rots_is_refused_and_nothing_is_written",
        ),
    ),
    4: Case(
        "torn slot: undo restores every field",
        ("recovery/startup/test_rollback.py::test_undo_restores_every_field_of_a_slot",),
        journal=(f"{_JOURNAL_FAULTS}test_a_torn_page_of_a_checkpoint_is_stored_whole_again",),
    ),
    5: Case(
        "crash in recovery: the same result",
        (f"{_FAILPOINTS}test_kill_in_recovery",),
        journal=(f"{_JOURNAL_KILLS}test_kill_in_recovery",),
    ),
    6: Case(
        "crash in growth: every block in its old place or in its new ones, no key lost, and growth goes on",
        ("recovery/startup/test_growth_kills.py::test_kill_in_a_growth_step",),
    ),
    7: Case(
        "crash in compaction: no live record lost",
        (
            f"{_COMPACTION}test_kills_inside_steps_lose_nothing_and_wedge_nothing[8-undo]",
            f"{_COMPACTION}test_kills_inside_steps_lose_nothing_and_wedge_nothing[20-undo]",
        ),
        journal=(f"{_COMPACTION}test_kills_inside_steps_lose_nothing_and_wedge_nothing[8-journal]",),
    ),
    8: Case(
        "bit flip in header or root: the valid second copy, else refuse",
        (
            f"{_DAMAGE}test_one_damaged_root_copy_is_reported_and_repaired",
            f"{_DAMAGE}test_damage_that_is_refused[roots]",
            f"{_DAMAGE}test_damage_that_is_refused[flag]",
            "recovery/proof/damage/test_bitflip.py::test_nothing_is_missed",
        ),
        journal=(
            f"{_JOURNAL_FAULTS}test_one_damaged_root_copy_is_reported_and_repaired",
            f"{_JOURNAL_FAULTS}test_roots_that_differ",
            f"{_JOURNAL_FAULTS}test_damage_that_is_refused[roots]",
        ),
    ),
    9: Case(
        "bit flip in a record: DATA_LOSS, never a wrong value; in a slot: as the design says",
        (
            f"{_DAMAGE}test_flipped_bit_in_a_record_is_never_served",
            "faults/test_server.py::test_a_rotten_record_is_data_loss_to_its_reader_alone",
            "recovery/proof/damage/test_bitflip.py::test_nothing_is_missed",
        ),
        journal=(
            f"{_JOURNAL_DAMAGE}test_a_record_that_rots_after_a_close_costs_its_key_alone",
            "faults/test_server.py::test_a_rotten_record_is_data_loss_to_its_reader_alone",
        ),
    ),
    10: Case(
        "bit flip in the log while active: refuse, no partial undo",
        (
            f"{_DAMAGE}test_damaged_active_log_is_refused_before_anything_is_undone",
            "recovery/proof/damage/test_bitflip.py::test_outcomes",
        ),
        journal=(f"{_JOURNAL_DAMAGE}test_a_frame_that_rots_is_refused_and_nothing_is_written",),
    ),
    11: Case(
        "truncated file at open: size checked before mapping",
        tuple(
            f"{_DAMAGE}test_damage_that_is_refused[truncated-{name}]"
            for name in ("root", "log", "heap", "index-0-0", "catalog-0.json")
        ),
        journal=(
            f"{_JOURNAL_DAMAGE}test_a_journal_that_is_cut_short_is_refused",
            *(
                f"{_JOURNAL_FAULTS}test_damage_that_is_refused[truncated-{name}]"
                for name in ("root", "data", "index-0-0", "catalog-0.json")
            ),
        ),
    ),
    12: Case(
        "file truncated while running (SIGBUS): logged, exit non-zero, no reply sent",
        ("server/test_faults.py::test_a_file_truncated_while_it_is_served_ends_the_server_with_its_name",),
        journal=(
            "server/test_faults.py::test_a_file_truncated_while_it_is_served_ends_the_server_with_its_name[journal-data]",
        ),
    ),
    13: Case(
        "wrong version, magic or byte order: refuse, file untouched",
        (f"{_DAMAGE}test_another_format_is_refused_untouched",),
        journal=(f"{_JOURNAL_FAULTS}test_another_format_is_refused_untouched",),
    ),
    14: Case(
        "disk full at creation or in growth: space reserved first, RESOURCE_EXHAUSTED, old tables serve, growth waits",
        (
            f"{_STORE}test_disk_full_at_creation_leaves_nothing",
            "engine/test_u64.py::test_table_that_does_not_fit_the_disk_changes_nothing",
            f"{_SYSCALLS}test_every_call_fails[fallocate-ENOSPC-once]",
            f"{_SYSCALLS}test_a_disk_that_fills_up_stays_usable",
            f"{_GROWTH}test_growth_waits_for_the_disk_and_goes_on_by_itself",
            f"{_GROWTH}test_the_catalogue_waits_for_the_disk",
        ),
        journal=(
            f"{_STORE}test_disk_full_at_creation_leaves_nothing",
            "engine/test_u64.py::test_table_that_does_not_fit_the_disk_changes_nothing",
            f"{_JOURNAL_SYSCALLS}test_every_call_fails[any-fallocate-ENOSPC-once]",
            f"{_SYSCALLS}test_a_disk_that_fills_up_stays_usable[journal]",
            "faults/test_full_disk.py::test_a_journal_goes_on_without_a_byte",
            f"{_GROWTH}test_growth_waits_for_the_disk_and_goes_on_by_itself",
            f"{_GROWTH}test_the_catalogue_waits_for_the_disk",
        ),
    ),
    15: Case(
        "heap or log full: the request that does not fit is rejected whole, GET and DELETE work",
        (
            f"{_FULL}test_full_heap",
            f"{_FULL}test_log_that_a_batch_does_not_fit_cuts_it_between_requests",
            "server/test_load.py::test_full_heap",
        ),
        journal=(
            f"{_FULL}test_full_heap",
            f"{_FULL}test_frame_that_a_batch_does_not_fit_is_cut_between_requests",
            "server/test_load.py::test_full_heap",
            f"{_SLOW}test_bounds_are_kept",
        ),
    ),
    16: Case(
        "set full and growth impossible: the request that does not fit is rejected whole, the others commit",
        (
            f"{_FULL}test_full_index_refuses_single_keys_and_serves_the_rest",
            f"{_FULL}test_first_request_in_arrival_order_is_the_one_refused",
            "server/test_load.py::test_full_index_refuses_what_does_not_fit_and_runs_the_rest",
        ),
    ),
    17: Case(
        "fdatasync fails (EIO): stop writing, exit, recover on restart; never retried",
        (
            f"{_SYSCALLS}test_a_failed_fdatasync_stops_the_process_and_is_not_tried_again",
            f"{_SYSCALLS}test_every_call_fails[fdatasync-EIO-once]",
            f"{_SYSCALLS}test_every_call_fails[fdatasync-EIO-forever]",
            "faults/test_server.py::test_a_failed_fdatasync_ends_the_server",
        ),
        journal=(
            f"{_JOURNAL_SYSCALLS}test_every_call_fails[data-fdatasync-EIO-once]",
            f"{_JOURNAL_SYSCALLS}test_every_call_fails[index-fdatasync-EIO-once]",
            f"{_JOURNAL_SYSCALLS}test_every_call_fails[root-fdatasync-EIO-once]",
            f"{_JOURNAL_SYSCALLS}test_the_thread_of_checkpoints_ends_the_process",
            "faults/test_server.py::test_a_journal_that_cannot_be_written_ends_the_server",
        ),
    ),
    18: Case(
        "host out of memory at the Nth allocation: clean error, no change",
        (
            "faults/test_memory.py::test_allocations_of_a_batch_fail",
            "faults/test_memory.py::test_allocations_of_an_opening_fail",
        ),
        journal=(
            "faults/test_memory.py::test_allocations_of_a_batch_fail[once-journal]",
            "faults/test_memory.py::test_allocations_of_a_batch_fail[forever-journal]",
            "faults/test_memory.py::test_allocations_of_an_opening_fail[journal]",
        ),
    ),
    19: Case(
        "GPU out of memory: refused before the flag",
        (
            "backends/cuda/test_cuda.py::test_too_little_memory_for_the_mirror",
            "backends/cuda/test_cuda.py::test_a_table_without_memory_for_its_mirror_is_not_made",
        ),
        needs_gpu=True,
    ),
    20: Case(
        "CUDA sticky error, lost GPU: the process exits, the flag is left for recovery",
        ("backends/cuda/test_cuda.py::test_a_lost_gpu_ends_the_process",),
        needs_gpu=True,
    ),
    21: Case("hung kernel: a watchdog exits", not_applicable=NO_FEATURE),
    22: Case(
        "OOM kill, SIGKILL: as 1",
        (
            "recovery/proof/drill/test_drill.py::test_kills_at_failpoints_and_at_random",
            "recovery/proof/consistency/test_consistency.py::test_a_server_that_is_killed_is_strictly_serializable",
        ),
        journal=(
            "recovery/proof/drill/test_drill.py::test_kills_at_failpoints_and_at_random[journal]",
            _CONSISTENT,
            f"{_SLOW}test_order_is_kept",
        ),
    ),
    23: Case(
        "SIGTERM in a batch: finish, drain, exit 0 in bounded time",
        (
            "server/test_lifecycle.py::test_signal_under_load",
            "server/test_lifecycle.py::test_accepted_work_gets_its_response_when_stopped",
            "server/test_lifecycle.py::test_time_to_finish_is_bounded",
        ),
    ),
    24: Case(
        "second start on one directory: refused",
        (
            f"{_STORE}test_second_process_is_refused_with_the_pid_of_the_first",
            "server/test_lifecycle.py::test_a_second_process_on_one_directory_names_the_first",
        ),
    ),
    25: Case("stale lock after a kill: starts", (f"{_STORE}test_lock_left_by_a_kill_does_not_hinder",)),
    26: Case(
        "read-only file system, permission denied: clear error",
        (
            f"{_STORE}test_no_write_permission",
            "server/test_lifecycle.py::test_no_write_permission",
            f"{_SYSCALLS}test_a_directory_that_is_read_only_is_told_and_can_be_checked",
            f"{_SYSCALLS}test_every_call_fails[open-EROFS-forever]",
        ),
        "read-only mode: there is none; `gpkvs check` reads only",
        journal=(
            f"{_STORE}test_no_write_permission",
            "server/test_lifecycle.py::test_no_write_permission",
            f"{_SYSCALLS}test_a_directory_that_is_read_only_is_told_and_can_be_checked[journal]",
            f"{_JOURNAL_SYSCALLS}test_every_call_fails[any-open-EROFS-forever]",
        ),
    ),
    27: Case(
        "clock jump: no effect on data; deadlines monotonic",
        (
            "faults/test_clock.py::test_data_and_versions_do_not_depend_on_the_clock",
            "faults/test_clock.py::test_deadlines_are_those_of_a_clock_that_does_not_jump",
        ),
    ),
    28: Case(
        "deadline or cancel before ACTIVE: dropped",
        (
            "door/grpc/test_kv_service.py::test_a_call_that_is_cancelled_while_it_waits_is_dropped",
            "door/queue/test_moments.py::test_a_deadline_that_the_engine_sees_first",
            "door/python/test_requests_of_python.py::test_one_is_not_executed_after_its_deadline",
        ),
    ),
    29: Case(
        "deadline or cancel in a batch: the batch completes, the outcome is unknown to the client",
        (
            "server/test_faults.py::test_calls_cancelled_in_the_middle_leave_nothing_behind",
            "recovery/proof/consistency/test_consistency.py::test_calls_that_were_cut_off_are_part_of_it",
        ),
        journal=(
            "server/test_faults.py::test_calls_cancelled_in_the_middle_leave_nothing_behind",
            f"{_SLOW}test_order_is_kept",
        ),
    ),
    30: Case(
        "client retry: what may be done already is not repeated",
        (
            "client/test_gather.py::test_a_write_whose_response_is_lost_is_not_repeated_a_read_is",
            "client/test_gather.py::test_what_surely_was_not_executed_is_repeated",
        ),
    ),
    31: Case(
        "duplicate keys in a batch: request order, the same on both backends",
        (
            f"{_STORE}test_a_batch_sees_its_own_writes_in_order",
            "engine/test_u64.py::test_last_of_equal_keys_wins",
            "engine/test_model.py::test_batches_equal_one_operation_at_a_time",
        ),
        "the backend cuda: the same tests, with --backend cuda where there is a GPU",
    ),
    32: Case(
        "empty or huge key, huge value: INVALID_ARGUMENT before any store",
        ("server/calls/test_bad_input.py::test_single_operations", f"{_STORE}test_bad_batches"),
    ),
    33: Case(
        "zero-length value: stored, distinct from absent",
        (
            "server/calls/test_kv.py::test_empty_value_is_not_a_miss",
            "faults/test_server.py::test_an_empty_value_outlives_a_kill",
        ),
    ),
    34: Case(
        "oversized message: refused, memory bounded", ("server/calls/test_bad_input.py::test_message_over_the_limit",)
    ),
    35: Case(
        "malformed protobuf: an error to that call alone", ("server/calls/test_bad_input.py::test_malformed_protobuf",)
    ),
    36: Case(
        "slow reader: bounded buffers, the queue never waits",
        (
            "server/calls/test_pipeline.py::test_a_slow_reader_waits_alone",
            "server/test_faults.py::test_memory_for_a_client_that_hangs_is_bounded",
        ),
    ),
    37: Case(
        "connection, stream, ping flood: limits",
        ("server/test_load.py::test_full_queue", "server/calls/test_pipeline.py::test_the_number_in_flight_is_bounded"),
        "connections and pings: no limit of gpkvs's own",
    ),
    38: Case(
        "bad or absent credentials: UNAUTHENTICATED",
        (
            f"{_LOGIN}test_all_others_are_refused",
            f"{_LOGIN}test_a_token_takes_all_of_its_text",
            f"{_LOGIN}test_a_token_that_has_ended_says_so",
            f"{_LOGIN}test_nobody_has_to_send_a_message_to_be_refused",
            f"{_LOGIN}test_failures_slow_the_next_attempt_down_and_nobody_else",
            f"{_LOGIN}test_client_certificates_are_users",
            "server/access/test_rights.py::test_rights_of_calls",
            "server/access/test_sessions.py::test_streams_and_connections_of_a_removed_user_end",
            "server/access/test_sessions.py::test_a_login_that_no_longer_counts_ends",
            "server/ports/test_tls.py::test_tls_1_3_with_http_2_and_nothing_older",
            "server/ports/test_tls.py::test_only_a_certificate_of_the_ca_gets_in",
        ),
    ),
    39: Case(
        "a million keys that collide under an unkeyed hash: set load within 5 % of random keys",
        ("faults/test_aimed_keys.py::test_aimed_keys_load_buckets_as_random_ones_do",),
    ),
    40: Case(
        "the same key from concurrent batches: strictly serializable",
        (
            "recovery/proof/consistency/test_consistency.py::test_a_server_that_is_killed_is_strictly_serializable",
            "server/test_load.py::test_a_batch_is_never_seen_in_part",
        ),
        journal=(
            _CONSISTENT,
            f"{_SLOW}test_order_is_kept",
            "server/test_load.py::test_a_batch_is_never_seen_in_part",
        ),
    ),
}
