"""Mistakes where tables grow."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_GROWTH, _UNDO = "gpkvs/engine/tables/growth.py", "gpkvs/engine/commit/undo_committer.py"
_STEPS = "engine/tables/test_growth.py::test_any_steps_between_any_batches"
_KILLS = "recovery/startup/test_growth_kills.py"

MUTANTS = (
    Mutant(
        "limit-of-a-table-is-forgotten",
        "gpkvs/media/catalog.py",
        'if not table["index_bytes_max"]:',
        "if True:",
        "a table grows beyond its own limit after a restart",
        ("engine/tables/test_growth.py::test_a_table_has_a_limit_of_its_own",),
    ),
    Mutant(
        "geometry-missing-from-a-descriptor",
        "gpkvs/kernels/commit/commit.hpp",
        "    d.growth_unmoved = (u32)c.growth_unmoved;\n",
        "",
        "after a batch and a restart, keys are looked for where they were before the table grew",
        (_STEPS,),
    ),
    Mutant(
        "blocks-move-onto-each-other",
        _GROWTH,
        "max(unmoved, (last + 1) // 2, last - at_once)",
        "max(unmoved, last // 3, last - at_once)",
        "targets are stored over blocks that have not moved",
        (_STEPS,),
    ),
    Mutant(
        "blocks-move-in-ascending-order",
        "gpkvs/kernels/base/probe.cuh",
        "block < geometry.unmoved ? block",
        "block >= geometry.blocks - geometry.unmoved ? block",
        "keys are looked for in blocks that have moved",
        (_STEPS,),
    ),
    Mutant(
        "descriptor-before-the-targets-are-named",
        _UNDO,
        "            self._files.growth = growth_after(index, first)\n",
        "",
        "a step is not in any descriptor: a restart finds the keys of moved blocks nowhere",
        (_STEPS,),
    ),
    Mutant(
        "leaving-slots-stay",
        _UNDO,
        "            if leaving and leaving.tables[0].slots:\n",
        "            if leaving and not leaving.tables[0].slots:\n",
        "block 0 keeps the keys that left it: they are there twice",
        (_STEPS,),
    ),
    Mutant(
        "targets-not-emptied",
        "recovery/startup/replay.py",
        "            fill_blocks(backend, index, run.first_word, run.count, frame.header.epoch)\n",
        "",
        "after a replay, the targets hold what their blocks held before",
        (_STEPS,),
    ),
    Mutant(
        "moved-slots-logged-in-the-other-block",
        "gpkvs/kernels/cu/grow.cu",
        "(side[slot] == SIDE_UPPER)) * slots",
        "(side[slot] == SIDE_LOWER)) * slots",
        "after a replay, keys are in the block that they do not belong to",
        (_STEPS,),
    ),
    Mutant(
        "a-gpu-moves-slots-to-the-other-block",
        "gpkvs/kernels/cu/split_slots.cu",
        "(goes_up ? &slot : &empty) + word",
        "(goes_up ? &empty : &slot) + word",
        "keys that a GPU moved are in the block that they do not belong to",
        ("engine/tables/test_growth.py::test_a_gpu_moves_slots_as_the_host_does",),
    ),
    Mutant(
        "free-addresses-stay-reserved",
        "gpkvs/pm/mapping.py",
        "_unmap, address, max(count, _rooms.get(address, 0)))",
        "_unmap, address, count)",
        "each index that is closed leaves its addresses behind, until none are left",
        ("pm/test_region.py::test_the_free_addresses_go_with_the_region",),
    ),
    Mutant(
        "what-is-mapped-ahead-is-another-place-of-the-file",
        "gpkvs/pm/region.py",
        "            offset = self._offset + self._mapped_bytes\n",
        "            offset = self._offset\n",
        "the upper half of a growing index shows its lower half",
        ("pm/test_region.py::test_a_region_with_free_addresses_grows_where_it_is",),
    ),
    Mutant(
        "pages-of-targets-not-marked",
        "gpkvs/engine/commit/growth_steps.py",
        "    _mark_blocks(index, 2 * first, 2 * last, epoch)\n",
        "",
        "a checkpoint does not write what moved, and the journal forgets it",
        ("engine/tables/test_growth.py::test_a_checkpoint_knows_how_far_a_table_has_grown",),
    ),
    Mutant(
        "catalogue-before-the-last-step",
        _GROWTH,
        "        self._committer.wait(self._last_gate)\n",
        "",
        "a crash leaves a catalogue of twice the blocks beside blocks that have not moved: the store is refused (W7)",
        ("engine/tables/test_growth.py::test_the_last_step_is_durable_before_the_catalogue",),
    ),
    Mutant(
        "growth-of-a-checkpoint-forgotten",
        "gpkvs/engine/commit/checkpoint.py",
        "        descriptor.growth,\n",
        "",
        "after a checkpoint and a kill, keys are looked for where they were before the table grew",
        ("engine/tables/test_growth.py::test_a_checkpoint_knows_how_far_a_table_has_grown",),
    ),
    Mutant(
        "aimed-keys-double-a-table",
        _GROWTH,
        "                if not grew and _is_aimed(table, new_keys):\n",
        "                if False:\n",
        "who aims at a block makes the table grow as far as the disk goes",
        ("engine/tables/test_growth.py::test_a_table_is_not_doubled_for_keys_that_are_aimed_at_a_block",),
    ),
    Mutant(
        "dropped-table-still-grows",
        "gpkvs/store.py",
        "                self._engine.growth.forget(table)  # a frame between the two may still name its growth\n",
        "",
        "after a table that grew was dropped, no other one grows",
        ("engine/tables/test_growth.py::test_a_table_is_dropped_while_it_grows",),
    ),
)
