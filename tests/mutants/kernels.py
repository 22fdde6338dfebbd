"""Mistakes in the kernels, which are built again for each."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_READ, _PLACE, _SMALL = "gpkvs/kernels/read.cu", "gpkvs/kernels/place.cu", "gpkvs/kernels/small.hpp"
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
        "small-batch-reuses-what-it-frees",
        _SMALL,
        "u64 segment = a.tail_segment, used = a.live_units[segment] ? a.tail_units : 0;",
        "u64 segment = a.tail_segment, live = a.live_units[segment];\n"
        "    for (u64 i = 0; i < freed; i++)\n"
        "        if (reference_offset(a.freed[i]) / a.segment_units == segment) live -= reference_length(a.freed[i]);\n"
        "    u64 used = live ? a.tail_units : 0;",
        "a small batch stores over records that a crash would bring back (I7)",
        ("engine/test_heap.py::test_a_batch_stores_over_nothing_in_the_tail_segment_that_it_frees",),
    ),
    Mutant(
        "small-exact-fit-refused",
        _SMALL,
        "used + length > a.segment_units",
        "used + length >= a.segment_units",
        "a record that would end with its segment goes to another one: the last units of a heap are never used",
        ("engine/test_heap.py::test_a_record_may_end_with_its_segment",),
    ),
    Mutant(
        "small-batch-frees-nothing",
        _SMALL,
        "if (segment < a.segments) a.live_units[segment] -= reference_length(a.freed[i]);",
        "",
        "overwriting fills the heap",
        ("engine/test_full_store.py::test_overwriting_forever_does_not_fill_the_heap",),
    ),
    Mutant(
        "small-batch-forgets-removed-keys",
        _SMALL,
        "        a.counts[SMALL_REMOVED_KEYS] += a.change[chain] == CHANGE_REMOVE;\n",
        "",
        "the number of records only grows",
        (
            "engine/test_full_store.py::test_full_index_refuses_single_keys_and_serves_the_rest",
            "engine/test_native_planner.py",
        ),
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
        _PLACE,
        "give_back(its, a.slot[a.changed_chain[undone]]);",
        "",
        "requests behind one that does not fit the index are refused for room that nobody took",
        ("engine/test_full_store.py::test_a_refused_request_leaves_its_ways_to_those_behind_it",),
    ),
    Mutant(
        "refused-request-keeps-its-units",
        _PLACE,
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
        "gpkvs/kernels/scan.cu",
        " ||\n        offset / a.segment_units != (offset + units - 1) / a.segment_units)",
        ")",
        "`gpkvs check` passes a record that lies over the end of its segment, where others will be stored over it",
        ("recovery/startup/test_damage.py::test_check_names_the_invariant",),
    ),
)
