"""Mistakes where records, tables and transactions are kept: heap, salvage, directory, schema, engine."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HEAP, _SALVAGE, _TRANSACTION = "gpkvs/heap.py", "recovery/salvage.py", "gpkvs/transaction.py"
_UNSAFE, _HEAP_TESTS = "crash/test_unsafe.py::", "unit/test_heap.py::"

MUTANTS = (
    Mutant(
        "exact-fit-refused",
        _HEAP,
        'side="right"',
        'side="left"',
        "a record that would end with its segment goes to another one: the last units of a heap are never used",
        (f"{_HEAP_TESTS}test_a_record_may_end_with_its_segment",),
    ),
    Mutant(
        "segment-used-twice",
        _HEAP,
        "if candidate not in used_segments:",
        "if candidate != segment:",
        "a large batch that goes round the heap stores over its own records",
        (f"{_HEAP_TESTS}test_a_batch_that_goes_round_the_heap_stops_at_its_own_records",),
    ),
    Mutant(
        "free-space-counted-twice",
        _HEAP,
        "(self.segment_units - start.units if start.units else 0)",
        "self.segment_units - start.units",
        "an empty tail segment counts twice as free: more is admitted than fits",
        (f"{_HEAP_TESTS}test_free_bytes_are_those_that_records_can_take",),
    ),
    Mutant(
        "damaged-reference-counted",
        _HEAP,
        "np.minimum(part // span, np.uint64(segments))",
        "part // span",
        "one damaged reference asks for memory without bound",
        (f"{_HEAP_TESTS}test_a_damaged_reference_takes_no_memory_to_count",),
    ),
    Mutant(
        "phases-reuse-what-they-free",
        "gpkvs/engine.py",
        "self.heap.allocate(_joined(units))",
        "Heap(\n"
        "                self.heap.segment_units * UNIT_BYTES,\n"
        "                self.heap.tail,\n"
        "                self.heap.live_units - sum(self._freed_units(table.freed(plan)) for table, plan in plans),\n"
        "            ).allocate(_joined(units))",
        "a large batch stores over records that a crash would bring back (I7)",
        (f"{_HEAP_TESTS}test_a_batch_stores_over_nothing_in_the_tail_segment_that_it_frees",),
    ),
    Mutant(
        "versions-without-a-change",
        "gpkvs/engine.py",
        "if small.slots or small.sets:",
        "if small.slots:",
        "a version that was given is given again",
        ("unit/test_store.py::test_versions_are_never_reused",),
    ),
    Mutant(
        "salvage-old-tail",
        _SALVAGE,
        "        tail_bytes=files.root.segment_bytes,\n",
        "",
        "after an accepted loss, new records are stored over those that were kept",
        (f"{_UNSAFE}test_new_records_do_not_lie_over_those_that_were_kept",),
    ),
    Mutant(
        "salvage-version-again",
        _SALVAGE,
        "max(current.next_sequence, highest + 1)",
        "max(current.next_sequence, highest)",
        "after an accepted loss, the highest version is given again",
        (f"{_UNSAFE}test_versions_go_on_above_the_highest_of_all_tables",),
    ),
    Mutant(
        "salvage-version-of-the-last-table",
        _SALVAGE,
        "highest = max(highest, int((metas & np.uint64(VERSION_MAX)).max()))",
        "highest = int((metas & np.uint64(VERSION_MAX)).max())",
        "after an accepted loss, versions of other tables are given again",
        (f"{_UNSAFE}test_versions_go_on_above_the_highest_of_all_tables",),
    ),
    Mutant(
        "salvage-older-descriptor",
        _SALVAGE,
        "return max(whole, key=lambda descriptor: descriptor.epoch)",
        "return whole[0]",
        "after an accepted loss, versions are given again",
        (f"{_UNSAFE}test_the_newer_descriptor_counts",),
    ),
    Mutant(
        "salvage-index-not-durable",
        _SALVAGE,
        "            files.indexes[table.id].sync()\n            return dropped",
        "            return dropped",
        "a power failure brings back what was dropped, and the mark is gone",
        (f"{_UNSAFE}test_all_is_durable_before_the_mark_goes",),
    ),
    Mutant(
        "salvage-log-not-durable",
        _SALVAGE,
        "    files.log.sync()\n    files.root_region.sync()",
        "    files.root_region.sync()",
        "a power failure leaves a flag without its descriptor, and the mark is gone",
        (f"{_UNSAFE}test_all_is_durable_before_the_mark_goes",),
    ),
    Mutant(
        "table-id-again",
        "gpkvs/schema.py",
        "TableEntry(catalog.next_table_id, name",
        "TableEntry(1 + max(table.id for table in catalog.tables), name",
        "records of a dropped table pass for those of a new one",
        ("unit/test_u64.py::test_dropped_table_gives_back_its_space_and_its_id_is_not_reused",),
    ),
    Mutant(
        "failed-table-stays",
        "gpkvs/schema.py",
        "        _remove(path)\n        raise",
        "        raise",
        "a table that did not fit the disk keeps what it had got of it",
        ("unit/test_u64.py::test_table_that_does_not_fit_the_disk_changes_nothing",),
    ),
    Mutant(
        "small-file-not-durable",
        "gpkvs/directory.py",
        "        _write_all(file, data)\n        os.fsync(file)",
        "        _write_all(file, data)",
        "after a power failure a catalogue has its name and is empty",
        ("unit/test_store.py::test_a_small_file_is_durable_before_it_has_its_name",),
    ),
    Mutant(
        "locked-by-the-dead",
        "gpkvs/directory.py",
        ' and Path(f"/proc/{text}").exists()',
        "",
        "who waits for a store is told the number of a process that ended long ago",
        ("unit/test_store.py::test_a_process_that_ended_is_not_named",),
    ),
    Mutant(
        "descriptor-after-the-flag",
        _TRANSACTION,
        "descriptor.epoch == epoch:",
        "descriptor.epoch >= epoch:",
        "a batch that was never committed moves versions and tail",
        ("crash/test_failpoints.py::test_a_batch_that_the_flag_never_named_gives_no_versions",),
    ),
    Mutant(
        "descriptor-stored-over",
        _TRANSACTION,
        "        self._current_copy = 1 - self._current_copy\n",
        "",
        "a crash in a batch takes the descriptor that recovery needs",
        ("crash/test_failpoints.py::test_kill_between_phases",),
    ),
    Mutant(
        "undo-one-slot-short",
        "recovery/recover.py",
        "((0, half), (half, run.count))",
        "((0, half), (half, run.count - 1))",
        "recovery leaves one slot of the batch in progress as the batch made it",
        ("crash/test_rollback.py",),
    ),
    Mutant(
        "undo-unverified",
        "recovery/recover.py",
        "    verify_log(files, backend, descriptor)\n    on_progress",
        "    on_progress",
        "a damaged log is undone: recovery stores garbage over good slots (I6)",
        ("unit/test_damage.py::test_damaged_active_log_is_refused_before_anything_is_undone",),
    ),
)
