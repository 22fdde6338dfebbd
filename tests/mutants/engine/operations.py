"""Mistakes with operations that look before they act: conditions, checks, increments, appends."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RESOLVE = "gpkvs/kernels/plan/resolve.hpp"
_NATIVE_RESOLVE = "gpkvs/kernels/plan/native_resolve.hpp"
_NATIVE_DICTIONARY = "engine/host/test_native_resolve.py::test_any_operations_do_what_a_dictionary_does"
_REFUSALS = "engine/host/test_native_refusals.py::"
_DICTIONARY = ("engine/test_resolve.py::test_any_operations_do_what_a_dictionary_does",)

_OWN_BATCH = "engine/host/test_own_batch.py::test_the_same_results_as_a_door_s"

MUTANTS = (
    Mutant(
        "columns-count-conflicts-as-done",
        "gpkvs/engine/host/own_batch.py",
        "        is_done[list(rejected)] = False\n",
        "",
        "results of a batch of columns belong to the requests before those that have them",
        (_OWN_BATCH,),
    ),
    Mutant(
        "values-begin-at-the-conflicts",
        "gpkvs/engine/host/own_batch.py",
        "data + refusals * _REFUSAL_BYTES, value_bytes",
        "data, value_bytes",
        "a batch in which a check stops a request returns other values",
        (_OWN_BATCH,),
    ),
    Mutant(
        "columns-may-return-all",
        "gpkvs/engine/host/own_turn.py",
        "GivenBatch(batch, native.made_bytes_max, own.found_words)",
        "GivenBatch(batch, (1 << 64) - 1, own.found_words)",
        "native code leaves what it could cut",
        ("engine/host/test_own_batch.py::test_a_batch_that_reads_too_much_is_cut",),
    ),
    Mutant(
        "located-keys-keep-their-writes",
        "gpkvs/kernels/plan/native_planner.hpp",
        "    if (a.is_located) find_last_writes(a);\n    else find_keys(a, only_sets);\n",
        "    if (!a.is_located) find_keys(a, only_sets);\n",
        "an increment that was acknowledged is lost: a batch is folded by the operations that were asked for",
        _DICTIONARY,
    ),
    Mutant(
        "half-a-guard",
        _RESOLVE,
        "failed == NO_OP && !is_refused ? plain((u32)op)",
        "(failed == NO_OP || op < failed) && !is_refused ? plain((u32)op)",
        "a request whose check failed is done up to the check",
        _DICTIONARY,
    ),
    Mutant(
        "refused-and-done",
        _NATIVE_RESOLVE,
        "            else if (failed != NO_OP) refusals_.push_back(conflict_of(request, failed, first));\n"
        "            if (lacks || failed != NO_OP) {",
        "            else if (failed != NO_OP) refusals_.push_back(conflict_of(request, failed, first));\n"
        "            if (failed != NO_OP) {",
        "requests behind one that is refused get the results of those before them",
        (f"{_REFUSALS}test_new_keys_of_an_index_that_does_not_grow",),
    ),
    Mutant(
        "refused-for-ever",
        "gpkvs/engine/host/crew.py",
        "            if closed or not is_over:",
        "            if not is_over:",
        "a store that had no room once refuses requests though it has room again",
        ("engine/host/test_own_turn.py::test_what_had_no_room_may_find_some_the_next_time",),
    ),
    Mutant(
        "turn-lives-on-after-an-interrupt",
        "gpkvs/engine/host/crew.py",
        "            if closed or not is_over:",
        "            if closed:",
        "keys are stored where a table had them before it grew",
        ("engine/tables/test_interrupted_growth.py",),
    ),
    Mutant(
        "charged-as-often-as-written",
        "gpkvs/kernels/plan/native_admit.hpp",
        "        if (a.found[changed] != NO_SLOT) held[changed] =",
        "        if (a.found[changed] == NO_SLOT) held[changed] =",
        "a full store refuses to have values replaced by shorter ones",
        (f"{_REFUSALS}test_what_takes_no_more_than_before_is_not_refused",),
    ),
    Mutant(
        "conditions-see-what-was-refused",
        _RESOLVE,
        "!is_refused ? plain((u32)op) : (u8)OP_EXISTS;",
        "!is_refused ? plain((u32)op) : (plain((u32)op), (u8)OP_EXISTS);",
        "a condition is decided on what a request would have written that a check refused",
        _DICTIONARY,
    ),
    Mutant(
        "conditions-see-deleted-keys",
        _RESOLVE,
        "a.slot[a.chain[op]] != NO_SLOT : a.plain_ops[writer] == OP_SET;",
        "a.slot[a.chain[op]] != NO_SLOT : true;",
        "a SET if absent is refused for a key that the same batch has deleted",
        _DICTIONARY,
    ),
    Mutant(
        "conditions-compare-old-versions",
        _RESOLVE,
        "slot_version(a.old_meta[a.chain[op]]) : a.versions[writer];",
        "slot_version(a.old_meta[a.chain[op]]) : slot_version(a.old_meta[a.chain[op]]);",
        "two writers of one batch both see the version that they expect: one update is lost",
        _DICTIONARY,
    ),
    Mutant(
        "increments-read-the-table",
        _RESOLVE,
        "        if (a.ops[writer] == OP_INCREMENT) {\n            *number = (long long)a.numbers[writer];\n",
        "        if (a.ops[writer] == OP_INCREMENT) {\n            *number = 0;\n",
        "two increments of a batch count as one",
        _DICTIONARY,
    ),
    Mutant(
        "sums-lose-their-sign",
        _RESOLVE,
        "    if (number < 0) text[0] = '-';\n",
        "    if (number < 0) text[0] = '0';\n",
        "a counter that went below zero is stored as a positive number",
        _DICTIONARY,
    ),
    Mutant(
        "native-values-stand-upon-each-other",
        _NATIVE_RESOLVE,
        "                a.offset[get] = value_bytes_;\n",
        "",
        "a client gets the bytes of a counter as a value",
        (_NATIVE_DICTIONARY, "engine/host/test_native_resolve.py::test_values_stand_in_the_order_of_their_operations"),
    ),
    Mutant(
        "native-statuses-are-the-plan-s",
        _NATIVE_RESOLVE,
        "            room.status[done] = status_of(a, op);\n",
        "            room.status[done] = a.status[op];\n",
        "a SET if absent that did nothing says that it was done",
        (_NATIVE_DICTIONARY,),
    ),
    Mutant(
        "native-stopped-requests-have-results",
        _NATIVE_RESOLVE,
        "    bool is_stopped(u64 op) const { return !is_stopped_.empty() && is_stopped_[op]; }",
        "    bool is_stopped(u64 op) const { return is_stopped_.size() == op + 1; }",
        "a client gets the results of another's request, which a check has stopped",
        (_NATIVE_DICTIONARY,),
    ),
    Mutant(
        "door-tells-another-of-several-that-it-was-stopped",
        "door/queue/turn.cpp",
        "next++->request = number;",
        "next++->request = 0;",
        "of a message with several requests the wrong one is said to have done nothing",
        ("door/queue/test_conflicts.py::test_of_several_requests_each_has_its_own_conflict",),
    ),
    Mutant(
        "door-shares-out-what-was-stopped",
        "door/queue/turn.cpp",
        "request.stopped += (u32)(last - op);",
        "request.stopped += 0;",
        "a client gets the results of another's request, which a check has stopped",
        ("door/queue/test_conflicts.py::test_of_several_requests_each_has_its_own_conflict",),
    ),
    Mutant(
        "native-conflicts-are-another-s",
        "door/queue/turn.cpp",
        "        if (next->request >= number + request->requests) continue;\n",
        "",
        "a transaction is told that it failed, and was done",
        ("door/queue/test_conflicts.py::test_each_request_of_a_batch_has_its_own_conflict",),
    ),
    Mutant(
        "native-numbers-may-begin-with-zeros",
        _RESOLVE,
        "(text[is_negative] == '0' && bytes > 1)",
        "false",
        "INCR counts on from what Redis takes for no number",
        (_NATIVE_DICTIONARY, *_DICTIONARY),
    ),
    Mutant(
        "native-batches-make-what-they-like",
        "gpkvs/kernels/engine/native_engine.hpp",
        "        batch = half_of(batch);\n",
        "        break;\n",
        "one client's EXPIREs of long values have all others wait",
        ("engine/host/test_native_resolve.py::test_what_a_batch_makes_has_a_limit",),
    ),
)
