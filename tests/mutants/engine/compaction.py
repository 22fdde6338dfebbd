"""Mistakes in compaction."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_STEP, _FIND = "gpkvs/engine/space/compaction.py", "gpkvs/kernels/plan/compact.hpp"
_TESTS = "engine/space/test_compaction.py::"
_LIMIT, _ROT = f"{_TESTS}test_any_write_is_accepted_below_the_limit", f"{_TESTS}test_what_rot_hides_moves_too"
_KILLS = f"{_TESTS}test_kills_inside_steps_lose_nothing_and_wedge_nothing"
_LONG = "engine/space/test_long_records.py"
_ALLOCATE, _COUNTS, _HEAP = (
    "gpkvs/kernels/plan/allocate.hpp",
    "gpkvs/kernels/base/live_units.cuh",
    "gpkvs/engine/state/heap.py",
)
_NEIGHBOURS = "gpkvs/engine/space/neighbours.py"

MUTANTS = (
    Mutant(
        "record-matched-by-key",
        _FIND,
        "if (slot == NO_SLOT || index[slot / WAYS].ways[slot % WAYS].reference != record.reference) continue;",
        "if (slot == NO_SLOT) continue;",
        "an old record of a key takes the place of the new one",
        (_LIMIT,),
    ),
    Mutant(
        "users-take-the-reserve",
        "gpkvs/engine/state/heap.py",
        "self.state[_RESERVE] = reserve_of(segments, self.segment_units, self.longest)",
        "self.state[_RESERVE] = 0",
        "compaction finds no room, and writes are refused for ever",
        (_LIMIT, _KILLS),
    ),
    Mutant(
        "walk-stops-at-rot",
        _STEP,
        "            self._swept, self._at = (0, 0) if is_over else (None, moves.at)\n",
        "            self._swept, self._at = (len(moves.tables), 0) if is_over else (None, moves.at)\n",
        "segments with a damaged header are never empty again",
        (_ROT,),
    ),
    Mutant(
        "survivors-start-fresh",
        _FIND,
        "        if (emptiest != NO_SEGMENT && room(emptiest) * ROOM_SHARE_MIN >= a.segment_units) "
        "return survivors_ = emptiest;\n"
        "        if (free == NO_SEGMENT) return fullest;\n",
        "        if (free == NO_SEGMENT) return NO_SEGMENT;\n",
        "a few kills in a row leave no free segment, and a small heap is wedged",
        (_KILLS,),
    ),
    Mutant(
        "victim-stored-over",
        _FIND,
        "explicit Mover(const Args& args) : a(args), survivors_(args.survivors[0]) {}",
        "explicit Mover(const Args& args) : a(args), survivors_(args.victims[0]) { a.ends[survivors_] = 0; }",
        "records are stored over those that they came from, before the batch is durable (I7)",
        (_LIMIT,),
    ),
    Mutant(
        "step-of-one-victim",
        _FIND,
        "if (victim + 1 == a.victim_count) break;",
        "break;",
        "a large batch asks for a step for each segment that it needs",
        (f"{_TESTS}test_a_large_batch_takes_few_steps",),
    ),
    Mutant(
        "step-goes-on-with-the-first-victim",
        _STEP,
        "            for victim in moves.victims[1 : moves.victim + 1].tolist():\n",
        "            for victim in ():\n",
        "what the other victims freed does not count, and more is moved for it",
        (f"{_TESTS}test_a_large_batch_takes_few_steps",),
    ),
    Mutant(
        "moved-records-unverified",
        "recovery/startup/replay.py",
        " | _is_move(frame)\n",
        "\n",
        "a step that a crash left uncovered is cut, and what was acknowledged after it",
        (f"{_ROT}[journal-as-wanted]", f"{_ROT}[journal-many]"),
    ),
    Mutant(
        "moved-records-must-be-whole",
        "gpkvs/kernels/cu/redo.cu",
        "        else a.digest[i] = moved_digest(slot.reference, (const u64*)(a.heap + at));\n",
        "        else if (!checked_record(a.heap, a.end_byte, a.record_format, slot.reference).words) a.wrong[i] = 1;\n"
        "        else a.digest[i] = moved_digest(slot.reference, (const u64*)(a.heap + at));\n",
        "a step that moved a damaged record is taken for one that was never written, and the store is refused or cut",
        (f"{_ROT}[journal-as-wanted]", f"{_ROT}[journal-many]"),
    ),
    Mutant(
        "idle-store-compacts-everything",
        _STEP,
        "IDLE_SHARE_MAX: Final = 0.5",
        "IDLE_SHARE_MAX: Final = 0.95",
        "an idle store that is nearly full writes again and again",
        (f"{_TESTS}test_an_idle_store_compacts_what_is_worth_it_and_ends",),
    ),
    Mutant(
        "long-record-over-the-tail",
        _ALLOCATE,
        "segment-- > tail_.low;",
        "segment-- > 0;",
        "a long record is stored over records of its own batch",
        (f"{_LONG}::test_a_long_record_takes_nothing_that_its_batch_has_taken",),
    ),
    Mutant(
        "long-records-over-each-other",
        _ALLOCATE,
        "        tail_.high = first;\n",
        "",
        "the long records of one batch are stored over each other",
        (f"{_LONG}::test_a_batch_with_records_of_all_lengths",),
    ),
    Mutant(
        "neighbour-not-counted",
        _COUNTS,
        "    return segment + parts <= a.segments ? parts : 0;\n",
        "    return segment + parts <= a.segments;\n",
        "after an opening, a long record's further segments pass for free, and are stored over",
        (f"{_LONG}::test_an_opening_counts_every_segment",),
    ),
    Mutant(
        "reserve-without-the-run",
        _HEAP,
        " + run_of(segments, segment_units, longest)\n",
        "\n",
        "long records find no neighbours though the charge allows them",
        (f"{_LONG}::test_the_promise_names_what_is_kept_for_long_records", f"{_LONG}::test_any_length_is_accepted"),
    ),
    Mutant(
        "run-not-kept",
        _HEAP,
        "        self.state[_RUN] = run_of(segments, self.segment_units, self.longest)\n",
        "        self.state[_RUN] = 0\n",
        "where free segments are between long records, none of them can move, and one is refused for ever",
        (f"{_LONG}::test_any_length_is_accepted",),
    ),
    Mutant(
        "survivors-where-neighbours-are-made",
        _STEP,
        "for run in (heap.kept_run, self._barred):",
        "for run in (heap.kept_run,):",
        "compaction fills the segments that it has emptied for a long record",
        (f"{_LONG}::test_records_in_the_way_move",),
    ),
    Mutant(
        "run-passes-what-is-longer",
        _NEIGHBOURS,
        "                if length > high - low or self._fixed[begin : begin + length].any():\n",
        "                if self._fixed[begin : begin + length].any():\n",
        "a long record is moved over itself: a crash finds it torn",
        (f"{_LONG}::test_a_run_passes_no_record_that_is_longer",),
    ),
)
