"""Mistakes where a GPU plans, and where two processors store."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SHARED = "gpkvs/engine/shared_slots.py"
_PARTS = "engine/test_shared_slots.py::test_each_processor_logs_and_stores_a_part"
_STORES = "gpkvs/kernels/launch_stores.hpp"
_DRIVER = "backends/test_stores.py"
_LAUNCHED = "engine/test_launched_phases.py"
_SHARDS = "engine/test_sharded_phases.py"
_KILLS = "recovery/proof/powerfail/test_explorer.py::test_a_pair_of_processors_has_no_violation"

MUTANTS = (
    Mutant(
        "part-of-the-host-is-not-stored",
        _SHARED,
        """            last - middle,
            changed_slot=part.slots_from(middle),
            contents=part.contents,""",
        """            0,
            changed_slot=part.slots_from(middle),
            contents=part.contents,""",
        "the slots of the host's threads keep what they had",
        (_PARTS,),
    ),
    Mutant(
        "digest-without-the-part-of-the-host",
        _SHARED,
        "self._digest += host.total(digest)",
        "self._digest += 0",
        "recovery takes a whole log for a torn one",
        (_KILLS,),
    ),
    Mutant(
        "stores-of-the-gpu-are-not-awaited",
        _SHARED,
        "(last - middle, took), (middle - first, stored().seconds))",
        "(last - middle, took), (middle - first, 1.0))",
        "a batch is IDLE while the GPU still stores its slots",
        (_PARTS,),
    ),
    Mutant(
        "digest-without-the-part-of-the-gpu",
        _SHARED,
        "self._digest += total\n",
        "self._digest += 0\n",
        "recovery takes a whole log for a torn one",
        (_KILLS,),
    ),
    Mutant(
        "log-of-a-gpu-alone-is-not-awaited",
        _SHARED,
        "            self._digest += logged().total\n        else:",
        "            self._digest += 0\n        else:",
        "a batch is ACTIVE without a digest, and its log may still be on its way",
        ("recovery/startup/test_sharded_rollback.py",),
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
        _SHARED,
        "            index=writes.index,\n            epoch=epoch,\n            first=at + first,",
        "            index=writes.index,\n            epoch=epoch,\n            first=first,",
        "processors store their entries of the undo log over each other's",
        ("recovery/startup/test_sharded_rollback.py",),
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
        "gpkvs/kernels/order.cu",
        "    if (!descends) return;",
        "    return;",
        "operations of one key are not side by side, and become two keys",
        (f"{_LAUNCHED}::test_what_a_sort_cannot_tell_apart_is_put_in_order",),
    ),
    Mutant(
        "long-ties-are-not-told",
        "gpkvs/kernels/order.cu",
        "if (last < a.count && is_tied(a, last)) return atomic_add(a.left, 1);",
        "if (last < a.count && is_tied(a, last)) return;",
        "what was left unsorted is taken for sorted",
        (f"{_LAUNCHED}::test_too_many_ties_are_left_and_told",),
    ),
    Mutant(
        "late-descents-of-long-ties-are-not-told",
        "gpkvs/kernels/order.cu",
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
        " || is_write(kind) || a.written[fingerprint0 & (a.places - 1)])",
        " || is_write(kind))",
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
