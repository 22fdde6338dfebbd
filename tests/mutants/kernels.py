"""Mistakes in the kernels, which are built again for each."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_READ, _PLACE, _NATIVE = "gpkvs/kernels/read.cu", "gpkvs/kernels/place.cuh", "gpkvs/kernels/native_planner.hpp"
_ADMIT, _HEAP = "gpkvs/kernels/admit.hpp", "gpkvs/kernels/allocate.hpp"
_ENGINE, _ENGINE_TESTS = "gpkvs/kernels/native_engine.hpp", "engine/test_native_engine.py::"
_SLOW_DISK = "faults/test_slow_disk.py::test_the_native_engine_shows_nothing_before_it_is_durable"
_FOREIGN = ("recovery/startup/test_damage.py::test_a_record_that_is_not_the_slots_is_never_served",)

MUTANTS = (
    Mutant(
        "read-any-version",
        _READ,
        "record->version == a.versions[op] &&",
        "",
        "a slot that points to an older record of its key returns a value that was overwritten",
        _FOREIGN,
    ),
    Mutant(
        "read-any-key",
        _READ,
        "same_bytes(record_key(record), a.keys + a.key_offsets[op], record->key_bytes)",
        "true",
        "a slot that points to the record of another key returns that key's value",
        _FOREIGN,
    ),
    Mutant(
        "read-any-table",
        _READ,
        "record->table_id == a.table_id &&",
        "",
        "a slot that points to a record of another table returns its value",
        _FOREIGN,
    ),
    Mutant(
        "native-planner-reuses-what-it-frees",
        _NATIVE,
        "    Appender<PlannerBytes> appender(a, tail, a.filled_segment);\n",
        "    u64 live = a.live_units[tail.segment];\n"
        "    for (u64 i = 0; i < w.freed; i++)\n"
        "        if (reference_offset(a.freed_reference[i]) / a.segment_units == tail.segment)\n"
        "            live -= reference_length(a.freed_reference[i]);\n"
        "    if (!live) tail.units = 0;\n"
        "    Appender<PlannerBytes> appender(a, tail, a.filled_segment);\n",
        "a batch stores over records that a crash would bring back (I7)",
        ("engine/test_heap.py::test_a_batch_stores_over_nothing_in_the_tail_segment_that_it_frees",),
    ),
    Mutant(
        "exact-fit-refused",
        _HEAP,
        "tail_.units + units > end_",
        "tail_.units + units >= end_",
        "a record that would end with its segment goes to another one: the last units of a heap are never used",
        ("engine/test_heap.py::test_a_record_may_end_with_its_segment",),
    ),
    Mutant(
        "heap-has-no-end",
        "gpkvs/kernels/heap_state.hpp",
        "return rest < segment_units ? rest : segment_units;",
        "return segment_units;",
        "records go behind the end of a heap that ends inside its last segment",
        ("engine/test_heap_growth.py::test_any_batches_while_it_grows",),
    ),
    Mutant(
        "segment-used-twice",
        _HEAP,
        "            tail_.low = segment + 1;\n",
        "",
        "a batch that fills several segments stores over its own records",
        ("engine/test_heap.py::test_a_batch_that_fills_the_heap_stops_at_its_own_records",),
    ),
    Mutant(
        "damaged-reference-counted",
        "gpkvs/kernels/live_units.cuh",
        "if (units <= a.segment_units) return segment < a.segments;",
        "if (units <= a.segment_units) return 1;",
        "one damaged reference counts in memory that is not the heap's",
        ("kernels/test_kernels.py::test_units_of_references_are_counted_alike_on_host_and_gpu",),
    ),
    Mutant(
        "batch-frees-nothing",
        "gpkvs/kernels/write_set.hpp",
        "else w.live_units[part.segment] -= part.units;",
        "else w.live_units[part.segment] -= 0;",
        "overwriting fills the heap",
        ("engine/test_full_store.py::test_overwriting_forever_does_not_fill_the_heap",),
    ),
    Mutant(
        "writes-taken-as-reads",
        _NATIVE,
        "return reads == a.n;",
        "return reads + 3 >= a.n;",
        "SETs that were acknowledged are not done",
        ("engine/test_native_planner.py::test_at_once_and_by_phases_make_the_same_files",),
    ),
    Mutant(
        "native-planner-forgets-removed-keys",
        _NATIVE,
        "        removed_keys += change == CHANGE_REMOVE;\n",
        "",
        "the number of records only grows",
        (
            "engine/test_full_store.py::test_full_index_refuses_single_keys_and_serves_the_rest",
            "engine/test_native_planner.py",
        ),
    ),
    Mutant(
        "numbers-that-are-missing-are-read",
        _NATIVE,
        "return !a.get_op && !a.source_op && !memchr(a.status, STATUS_NOT_FOUND, a.n);",
        "return !a.get_op && !a.source_op;",
        "a key that is not there reads as the number 0, where a batch is GETs alone",
        ("engine/test_native_planner.py::test_batches_whose_columns_are_not_kept", "engine/test_u64.py"),
    ),
    Mutant(
        "new-keys-were-there-before",
        _NATIVE,
        "    a.found = a.own_found;\n    memcpy(a.found, a.slot, chains * sizeof *a.found);\n",
        "",
        "the slot that a new key takes counts as its old one: what lies there is freed",
        ("engine/test_native_planner.py",),
    ),
    Mutant(
        "log-takes-any-batch",
        "gpkvs/kernels/native_engine.hpp",
        "    if (exceeds_log(e, batch) && !is_refused) return LEFT_GROW_LOG;\n",
        "    (void)is_refused;\n",
        "a batch has more operations than the log is sized for",
        ("engine/test_log_growth.py", "engine/test_full_store.py"),
    ),
    Mutant(
        "large-columns-stay",
        "gpkvs/kernels/native_engine.hpp",
        "    if (a.outside_bytes) madvise(a.outside, a.outside_bytes, MADV_FREE);\n",
        "    (void)a;\n",
        "after one large batch the system has less memory for good",
        ("engine/test_native_planner.py::test_the_system_may_have_what_a_large_batch_used",),
    ),
    Mutant(
        "long-chains-out-of-order",
        "gpkvs/kernels/order.hpp",
        "std::stable_sort(first, last,",
        "std::sort(first, last,",
        "in a batch that writes a key often, another value than the last one stays",
        ("kernels/test_kernels.py::test_order_is_a_stable_sort",),
    ),
    Mutant(
        "refused-request-keeps-its-ways",
        _ADMIT,
        "give_back(its, a.slot[a.changed_chain[undone]]);",
        "",
        "requests behind one that does not fit the index are refused for room that nobody took",
        ("engine/test_full_store.py::test_a_refused_request_leaves_its_ways_to_those_behind_it",),
    ),
    Mutant(
        "refused-request-keeps-its-units",
        _ADMIT,
        "        used = used_before;\n",
        "",
        "requests behind one that does not fit the heap are refused for room that nobody took",
        ("engine/test_full_store.py::test_a_refused_request_leaves_its_room_in_the_heap_to_those_behind_it",),
    ),
    Mutant(
        "pinned-occupant-moves",
        _PLACE,
        "        if (of_bucket<Slot>(state.pinned, bucket) >> way & 1) continue;\n",
        "",
        "one batch changes a slot twice: a key disappears, or undo restores the wrong slot",
        ("engine/test_capacity.py",),
    ),
    Mutant(
        "audit-across-segments",
        "gpkvs/kernels/audit.cu",
        " ||\n        !is_in_segments(offset % a.segment_units, units, a.segment_units))",
        ")",
        "`gpkvs check` passes a record that lies over the end of its segment, where others will be stored over it",
        ("recovery/startup/test_damage.py::test_check_names_the_invariant",),
    ),
    Mutant(
        "turn-forgets-new-keys",
        _ENGINE,
        "    table.gained += w.new_keys;\n",
        "",
        "a table that only a door writes to never grows before it is full",
        (f"{_ENGINE_TESTS}test_tables_grow_and_the_heap_is_compacted_in_time",),
    ),
    Mutant(
        "native-read-waits-for-nothing",
        _ENGINE,
        "    return std::min(newest, a.planned[PLANNED_GATE]);\n",
        "    return 0;\n",
        "a door shows what a crash takes back (W1)",
        (_SLOW_DISK,),
    ),
    Mutant(
        "turn-forgets-units",
        _ENGINE,
        "    e.heap_units += w.heap_units;\n",
        "",
        "batches of a door do not pay for compaction",
        (f"{_ENGINE_TESTS}test_tables_grow_and_the_heap_is_compacted_in_time",),
    ),
    Mutant(
        "left-batch-counts-twice",
        "gpkvs/engine/engine.py",
        "        if not self.meter.take_left():\n            self",
        "        if True:\n            self",
        "the metric shows batches of Python that came from a door",
        ("engine/test_left.py::test_each_reason_is_counted[columns-undo]",),
    ),
    Mutant(
        "expired-batch-counts-as-another",
        _NATIVE,
        "if (a.now && meets_expired(a, chains)) return LEFT_EXPIRED;",
        "if (a.now && meets_expired(a, chains)) return LEFT_GROW_INDEX;",
        "Python grows what need not grow, and the batch comes again for ever",
        ("engine/test_left.py::test_each_reason_is_counted[expired-undo]",),
    ),
    Mutant(
        "turn-has-no-end",
        _ENGINE,
        "if (!writes) return e.meter[METER_LAST] < e.ends_at_ns ? ENGINE_DONE : ENGINE_DUE;",
        "if (!writes) return ENGINE_DONE;",
        "while clients only read, expired keys stay and space is not given back",
        (f"{_ENGINE_TESTS}test_a_turn_ends_in_time",),
    ),
    Mutant(
        "native-request-reads-anything",
        _ENGINE,
        "        may = false;\n",
        "",
        "a request of a door reads more than one may",
        (f"{_ENGINE_TESTS}test_a_request_may_read_no_more_than_one_may_but_several_may",),
    ),
)
