"""Mistakes where a GPU plans, and where two processors store."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHUNKS = "gpkvs/kernels/chunks.hpp"
_OF_CHUNKS = "backends/test_chunks.py"
_ORDER = f"{_OF_CHUNKS}::test_no_slot_is_stored_before_its_chunk_is_marked"
_OF_KILLS = "recovery/startup/test_chunk_kills.py"
_KILLED = f"{_OF_KILLS}::test_a_killed_batch_is_not_there"
_PARTS = "engine/test_shared_slots.py::test_each_processor_stores_a_part"
_STORES = "gpkvs/kernels/launch_stores.hpp"
_DRIVER = "backends/test_stores.py"
_LAUNCHED = "engine/test_launched_phases.py"
_SHARDS = "engine/test_sharded_phases.py"

MUTANTS = (
    Mutant(
        "part-of-the-host-is-not-stored",
        _CHUNKS,
        """                threads.launch(LAUNCH_apply_u64, &args, count, nullptr);""",
        """                threads.launch(LAUNCH_apply_u64, &args, 0, nullptr);""",
        "the slots of the host's threads keep what they had",
        (_PARTS,),
    ),
    Mutant(
        "host-stores-before-the-marker",
        _CHUNKS,
        "            launcher->settle(marked_of(chunk));\n            launcher->settle(left_of(chunk));",
        "            launcher->settle(left_of(chunk));",
        "a slot is stored that no entry would undo",
        (_ORDER,),
    ),
    Mutant(
        "gpu-stores-before-the-marker",
        _CHUNKS,
        "        launcher->use(slot_queue);\n        launcher->wait(marked_of(chunk));",
        "        launcher->use(slot_queue);",
        "a slot is stored that no entry would undo",
        (_ORDER,),
    ),
    Mutant(
        "host-stores-after-an-error",
        _CHUNKS,
        "            if (launcher->has_failed()) return;",
        "            if (false) return;",
        "a slot is stored whose entry the driver refused",
        (f"{_OF_CHUNKS}::test_the_hosts_threads_store_nothing_after_an_error",),
    ),
    Mutant(
        "stores-of-the-gpu-are-not-awaited",
        _CHUNKS,
        "        launcher->settle(stored);\n",
        "",
        "a batch is IDLE while the GPU still stores its slots",
        (_ORDER,),
    ),
    Mutant(
        "mirror-changes-while-entries-are-read-from-it",
        _CHUNKS,
        "            launcher->wait(marked_of(to - 1));\n            apply(mirror",
        "            apply(mirror",
        "an entry has what its slot becomes",
        (_ORDER,),
    ),
    Mutant(
        "key-is-not-logged",
        "gpkvs/kernels/chunk.cu",
        "key_changes |= words[w] != after[w];",
        "key_changes |= false;",
        "an undone slot has the value of one key and the name of another",
        (_KILLED,),
    ),
    Mutant(
        "chunk-of-another-epoch-counts",
        "gpkvs/media/chunks.py",
        "        if marker and marker.epoch == epoch:",
        "        if marker:",
        "a chunk of an earlier batch is undone, or refused as damaged",
        (_KILLED,),
    ),
    Mutant(
        "lost-marker-before-another-one-counts-as-none",
        "gpkvs/media/chunks.py",
        "        if numbers != list(range(len(numbers))):",
        "        if numbers == [-1]:",
        "slots of a chunk stay as a batch left them that is not there",
        (f"{_OF_KILLS}::test_damage_is_refused_before_anything_is_undone",),
    ),
    Mutant(
        "markers-stay-when-epochs-are-given-again",
        "gpkvs/media/transaction.py",
        "    forget_chunks(files)\n",
        "",
        "a marker says of another batch's log that it is whole",
        (f"{_OF_KILLS}::test_markers_go_before_epochs_are_given_again",),
    ),
    Mutant(
        "host-is-told-before-the-sum",
        _STORES,
        "        if (summed) launcher->scan({summed, nullptr, tiles, total}, items, nullptr);\n"
        "        launcher->record(after);\n",
        "        launcher->record(after);\n"
        "        if (summed) launcher->scan({summed, nullptr, tiles, total}, items, nullptr);\n",
        "a descriptor has the digest of another log",
        (f"{_DRIVER}::test_the_host_is_told_of_a_log_after_its_stores_and_the_sum",),
    ),
    Mutant(
        "host-is-told-before-the-stores",
        _STORES,
        "        launcher->record(before);\n        launcher->launch((Launch)kernel, args, items, nullptr);\n",
        "        launcher->record(before);\n        launcher->record(after);\n"
        "        launcher->launch((Launch)kernel, args, items, nullptr);\n",
        "a batch is IDLE while the GPU still stores its slots",
        (_DRIVER,),
    ),
    Mutant(
        "mirror-does-not-wait-for-what-reads-it",
        _STORES,
        "        launcher->wait(before);\n",
        "",
        "a kernel before the stores reads the mirror as it is after them",
        (f"{_DRIVER}::test_a_mirror_follows_beside_the_stores_to_pm",),
    ),
    Mutant(
        "nothing-waits-for-the-mirror",
        _STORES,
        "        launcher->wait(followed);\n",
        "",
        "the next batch reads a mirror that lags behind",
        (f"{_DRIVER}::test_a_mirror_follows_beside_the_stores_to_pm",),
    ),
    Mutant(
        "mirror-gets-what-the-gpu-stores",
        _STORES,
        "mirror_args, mirrored, nullptr);",
        "mirror_args, items, nullptr);",
        "the mirror lacks the slots that the host's threads store",
        (f"{_DRIVER}::test_a_mirror_gets_all_slots_where_others_store_some",),
    ),
    Mutant(
        "get-of-a-written-key-is-not-ordered",
        "gpkvs/kernels/order.cu",
        "is_write(a.ops[i]) || a.written[a.fingerprint0[i] & (a.places - 1)]",
        "is_write(a.ops[i])",
        "a GET does not see the SET before it in its batch",
        ("engine/test_unordered_gets.py",),
    ),
    Mutant(
        "each-processor-has-all-keys",
        "gpkvs/kernels/probe.cuh",
        "return a.shards == 1 || ",
        "return true || ",
        "a key is planned and logged several times",
        (_SHARDS,),
    ),
    Mutant(
        "entries-of-each-processor-begin-at-the-first",
        "gpkvs/engine/chunked_slots.py",
        "            first=at,\n",
        "            first=0,\n",
        "processors store their entries of the undo log over each other's",
        (_KILLED,),
    ),
    Mutant(
        "one-processor-refuses-for-all",
        "gpkvs/engine/device/sharded_phases.py",
        "            raise NotTogetherError from None",
        "            raise",
        "requests are refused for what one processor sees of them",
        (_SHARDS,),
    ),
    Mutant(
        "the-other-path-is-never-tried",
        "gpkvs/backends/path_costs.py",
        "        return better.other\n",
        "        return better\n",
        "a batch that has become slow for other reasons is not tried on the other path",
        ("backends/test_path_costs.py",),
    ),
    Mutant(
        "parts-of-reads-in-the-wrong-order",
        "gpkvs/engine/device/sharded_phases.py",
        "for bounds in pairwise([0, *ends])]",
        "for bounds in pairwise([0, *ends])][::-1]",
        "parts of a result are in the wrong order",
        (_SHARDS,),
    ),
    Mutant(
        "ties-of-a-sort-stay",
        "gpkvs/kernels/ties.cuh",
        "    if (!descends) return;",
        "    return;",
        "operations of one key are not side by side, and become two keys",
        (f"{_LAUNCHED}::test_what_a_sort_cannot_tell_apart_is_put_in_order",),
    ),
    Mutant(
        "long-ties-are-not-told",
        "gpkvs/kernels/ties.cuh",
        "if (last < a.count && is_tied(a, last)) return atomic_add(a.left, 1);",
        "if (last < a.count && is_tied(a, last)) return;",
        "what was left unsorted is taken for sorted",
        (f"{_LAUNCHED}::test_too_many_ties_are_left_and_told",),
    ),
    Mutant(
        "late-descents-of-long-ties-are-not-told",
        "gpkvs/kernels/ties.cuh",
        "~a.numbers)) atomic_add(a.left, 1);\n        return;",
        "~a.numbers)) return;\n        return;",
        "what was left unsorted is taken for sorted",
        (f"{_LAUNCHED}::test_too_many_ties_are_left_and_told",),
    ),
    Mutant(
        "unsorted-plan-is-kept",
        "gpkvs/engine/device/phases_launched.py",
        "if not (counts.unplaced or counts.unsorted):",
        "if not counts.unplaced:",
        "what was left unsorted is stored",
        (f"{_LAUNCHED}::test_a_plan_that_is_not_sorted_is_made_by_phases",),
    ),
    Mutant(
        "written-key-is-not-selected",
        "gpkvs/kernels/number_plan.cu",
        " || is_write(kind) || *mark_of_place(a, packed));",
        " || is_write(kind));",
        "a GET does not see the SET before it in its batch",
        (f"{_LAUNCHED}::test_batches_are_answered_as_by_a_dictionary",),
    ),
    Mutant(
        "displaced-occupant-goes-to-the-slot-of-the-new-key",
        "gpkvs/kernels/number_plan.cu",
        "    a.changed_slot[at] = a.moved_to[i];",
        "    a.changed_slot[at] = slot;",
        "a displaced key is lost",
        (f"{_LAUNCHED}::test_a_table_fills_up_until_a_key_finds_no_way",),
    ),
    Mutant(
        "slots-that-a-batch-changes-may-be-taken",
        "gpkvs/kernels/number_plan.cu",
        "        mark_way<U64Slot>(pinned, slot / WAYS, slot % WAYS);",
        "",
        "a slot that a batch changes gives its way to a new key, and changes twice",
        (f"{_LAUNCHED}::test_the_bytes_are_those_of_the_phases",),
    ),
    Mutant(
        "values-begin-one-later",
        "gpkvs/kernels/number_plan.cu",
        "8 * (a.sums[i] >> 32) - 8;",
        "8 * (a.sums[i] >> 32);",
        "a SET stores the value of the next one",
        (f"{_LAUNCHED}::test_batches_are_answered_as_by_a_dictionary",),
    ),
    Mutant(
        "lanes-of-a-count-overflow",
        "gpkvs/kernels/kinds.hpp",
        "ROWS = 255;",
        "ROWS = 256;",
        "a batch of many GETs seems to have none",
        ("engine/test_kinds.py",),
    ),
)
