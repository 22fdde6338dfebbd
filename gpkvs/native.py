"""The compiled library of kernels: found, loaded and described once, at the bottom of all layers."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpkvs.errors import BackendError, ProcessorError

# Set for the processes of `gpkvs crash` only: they load the traced build of the same kernels
# (recovery/proof/powerfail/recorder.py).
TRACE_VARIABLE = "GPKVS_TRACE"
IS_TRACED = TRACE_VARIABLE in os.environ

_NAME = "_kernels_trace.so" if IS_TRACED else "_kernels.so"
# Another build of the same kernels, for tests: with sanitizers, or counting what was run (Makefile).
_VARIABLE = "GPKVS_KERNELS"


class KernelSymbol(ctypes.Structure):
    """What the library exports for each kernel (`struct Kernel` in kernels/base/platform.cuh)."""

    _fields_ = [
        ("args_bytes", ctypes.c_uint64),
        ("fields", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
        ("lanes", ctypes.c_uint32),
        ("stores_to_pm", ctypes.c_uint32),
        ("is_serial", ctypes.c_uint32),
    ]


def installed_library(name: str) -> Path:
    """Return the file of a library that was compiled with the package.

    Raises
    ------
    BackendError
        If it is missing.
    """
    beside = Path(__file__).parent / name
    if beside.exists():
        return beside
    # An editable install keeps the compiled file in site-packages and the Python files in the checkout.
    try:
        installed = Path(str(importlib.metadata.distribution("gpkvs").locate_file(f"gpkvs/{name}")))
    except importlib.metadata.PackageNotFoundError:
        installed = beside
    if not installed.exists():
        raise BackendError(f"the compiled kernels ({name}) are missing: install gpkvs with pip, or run `make install`")
    return installed


def _load() -> ctypes.CDLL:
    """Load the library of kernels, unless this processor would end the process at their first instruction.

    Raises
    ------
    ProcessorError
        If it would.
    BackendError
        If the library is missing.
    """
    loaded = ctypes.CDLL(os.environ.get(_VARIABLE) or str(installed_library(_NAME)))
    loaded.gpkvs_processor_lacks.argtypes = []
    loaded.gpkvs_processor_lacks.restype = ctypes.c_char_p
    if lacks := loaded.gpkvs_processor_lacks().decode().rstrip(";").replace(";", ", "):
        raise ProcessorError(
            f"this processor is too old for gpkvs: it lacks {lacks}. gpkvs runs on x86-64-v2 (Intel since 2008, AMD "
            "since 2011) and on ARMv8 with CRC32. A virtual machine may hide what its host has"
        )
    return loaded


library = _load()
library.gpkvs_pool_new.argtypes = [ctypes.c_uint32, ctypes.c_uint64]
library.gpkvs_pool_new.restype = ctypes.c_void_p
library.gpkvs_pool_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_pool_delete.restype = None
library.gpkvs_run.argtypes = [
    ctypes.c_void_p,
    ctypes.POINTER(KernelSymbol),
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_uint64,
]
library.gpkvs_run.restype = None
library.gpkvs_stage.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_uint64] * 2, *[ctypes.c_void_p] * 2]
library.gpkvs_stage.restype = ctypes.c_int
library.gpkvs_stage_max.argtypes = []
library.gpkvs_stage_max.restype = ctypes.c_uint64
library.gpkvs_sum.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
library.gpkvs_sum.restype = ctypes.c_uint64
library.gpkvs_count_kinds.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
library.gpkvs_count_kinds.restype = None
library.gpkvs_host_launcher_new.argtypes = [ctypes.c_void_p]
library.gpkvs_host_launcher_new.restype = ctypes.c_void_p
library.gpkvs_gpu_launcher_new.argtypes = [ctypes.c_void_p] * 3
library.gpkvs_gpu_launcher_new.restype = ctypes.c_void_p
library.gpkvs_launcher_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_launcher_delete.restype = None
library.gpkvs_launched.argtypes = []
library.gpkvs_launched.restype = ctypes.c_char_p
library.gpkvs_launch_stores_fields.argtypes = []
library.gpkvs_launch_stores_fields.restype = ctypes.c_char_p
library.gpkvs_read_rows_fields.argtypes = []
library.gpkvs_read_rows_fields.restype = ctypes.c_char_p
library.gpkvs_look_up_fields.argtypes = []
library.gpkvs_look_up_fields.restype = ctypes.c_char_p
library.gpkvs_look_up.argtypes = [ctypes.c_void_p]
library.gpkvs_look_up.restype = ctypes.c_int
library.gpkvs_store_chunks_fields.argtypes = []
library.gpkvs_store_chunks_fields.restype = ctypes.c_char_p
library.gpkvs_store_chunks.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 3]
library.gpkvs_store_chunks.restype = ctypes.c_int
library.gpkvs_landing_fields.argtypes = []
library.gpkvs_landing_fields.restype = ctypes.c_char_p
library.gpkvs_flight_new.argtypes = []
library.gpkvs_flight_new.restype = ctypes.c_void_p
library.gpkvs_flight_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_flight_delete.restype = None
library.gpkvs_flight_end.argtypes = [ctypes.c_void_p]
library.gpkvs_flight_end.restype = None
library.gpkvs_flight_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
library.gpkvs_flight_wait.restype = None
library.gpkvs_tiles.argtypes = [ctypes.c_uint64]
library.gpkvs_tiles.restype = ctypes.c_uint64
library.gpkvs_digit_counts.argtypes = [ctypes.c_uint64]
library.gpkvs_digit_counts.restype = ctypes.c_uint64
library.gpkvs_batch_plan_fields.argtypes = []
library.gpkvs_batch_plan_fields.restype = ctypes.c_char_p
for _planner_fields in (library.gpkvs_planner_bytes_fields, library.gpkvs_planner_u64_fields):
    _planner_fields.argtypes = []
    _planner_fields.restype = ctypes.c_char_p
library.gpkvs_plan_counts.argtypes = []
library.gpkvs_plan_counts.restype = ctypes.c_char_p
library.gpkvs_plan_steps.argtypes = []
library.gpkvs_plan_steps.restype = ctypes.c_char_p
library.gpkvs_gpm_save_fields.argtypes = []
library.gpkvs_gpm_save_fields.restype = ctypes.c_char_p
library.gpkvs_gpm_save.argtypes = [ctypes.c_void_p] * 2
library.gpkvs_gpm_save.restype = ctypes.c_uint64
library.gpkvs_gpm_save_on_gpu.argtypes = [ctypes.c_void_p] * 3
library.gpkvs_gpm_save_on_gpu.restype = ctypes.c_int
library.gpkvs_order.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_uint64, *[ctypes.c_void_p] * 4]
library.gpkvs_order.restype = ctypes.c_uint64
library.gpkvs_pm_store.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64]
library.gpkvs_pm_store.restype = None
library.gpkvs_write_back_best.argtypes = []
library.gpkvs_write_back_best.restype = ctypes.c_uint32
library.gpkvs_write_back_on.argtypes = [ctypes.c_uint32]
library.gpkvs_write_back_on.restype = None
library.gpkvs_write_back.argtypes = []
library.gpkvs_write_back.restype = ctypes.c_uint32
library.gpkvs_persist_range.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
library.gpkvs_persist_range.restype = None
if IS_TRACED:
    library.gpkvs_trace_state.argtypes = []
    library.gpkvs_trace_state.restype = ctypes.c_void_p
library.gpkvs_lines_written_back.argtypes = []
library.gpkvs_lines_written_back.restype = ctypes.c_uint64
library.gpkvs_audits.argtypes = []
library.gpkvs_audits.restype = ctypes.c_char_p
for _list in ("operations", "conditions", "statuses", "engine_structs", "engine_table_fields"):
    _function = getattr(library, f"gpkvs_{_list}")
    _function.argtypes, _function.restype = [], ctypes.c_char_p
library.gpkvs_crc32c.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
library.gpkvs_crc32c.restype = ctypes.c_uint32
library.gpkvs_pack_records.argtypes = [*[ctypes.c_void_p] * 5, ctypes.c_uint64, ctypes.c_void_p]
library.gpkvs_pack_records.restype = ctypes.c_uint64
library.gpkvs_mapped.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p]
library.gpkvs_mapped.restype = None
library.gpkvs_unmapped.argtypes = [ctypes.c_uint64]
library.gpkvs_unmapped.restype = None
library.gpkvs_filesystem.argtypes = [ctypes.c_int]
library.gpkvs_filesystem.restype = ctypes.c_uint64

library.gpkvs_journal_new.argtypes = [ctypes.c_void_p]
library.gpkvs_journal_new.restype = ctypes.c_void_p
library.gpkvs_journal_end.argtypes = [ctypes.c_void_p]
library.gpkvs_journal_end.restype = None
library.gpkvs_journal_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_journal_delete.restype = None
library.gpkvs_journal_set_places.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
library.gpkvs_journal_set_places.restype = None
library.gpkvs_journal_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
library.gpkvs_journal_wait.restype = None
library.gpkvs_journal_flushes.argtypes = [ctypes.c_void_p]
library.gpkvs_journal_flushes.restype = ctypes.c_uint64
library.gpkvs_journal_flush_nanoseconds.argtypes = [ctypes.c_void_p]
library.gpkvs_journal_flush_nanoseconds.restype = ctypes.c_uint64
library.gpkvs_frames_new.argtypes = [ctypes.c_void_p]
library.gpkvs_frames_new.restype = ctypes.c_void_p
library.gpkvs_frames_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_frames_delete.restype = None
library.gpkvs_frames_lock.argtypes = [ctypes.c_void_p]
library.gpkvs_frames_lock.restype = None
library.gpkvs_frames_reserve.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
library.gpkvs_frames_reserve.restype = ctypes.c_void_p
library.gpkvs_prepare_space.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 5]
library.gpkvs_prepare_space.restype = None
library.gpkvs_waiting_new.argtypes = []
library.gpkvs_waiting_new.restype = ctypes.c_void_p
library.gpkvs_waiting_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_waiting_delete.restype = None
library.gpkvs_blobs_new.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
library.gpkvs_blobs_new.restype = ctypes.c_void_p
library.gpkvs_blobs_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_blobs_delete.restype = None
library.gpkvs_blobs_stay.argtypes = [ctypes.c_void_p]
library.gpkvs_blobs_stay.restype = None
library.gpkvs_blobs_lacking_pages.argtypes = [ctypes.c_void_p]
library.gpkvs_blobs_lacking_pages.restype = ctypes.c_uint64
library.gpkvs_blobs_free.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]
library.gpkvs_blobs_free.restype = None
library.gpkvs_blobs_release.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
library.gpkvs_blobs_release.restype = None
library.gpkvs_copied_blob.argtypes = [ctypes.c_uint64] * 4
library.gpkvs_copied_blob.restype = ctypes.c_uint32
library.gpkvs_blob_pages_new.argtypes = [*[ctypes.c_void_p] * 2, *[ctypes.c_uint64] * 2]
library.gpkvs_blob_pages_new.restype = ctypes.c_void_p
library.gpkvs_blob_pages_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_blob_pages_delete.restype = None
library.gpkvs_keyed_digest.argtypes = [
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_char_p,
    ctypes.c_uint64,
    ctypes.c_void_p,
]
library.gpkvs_keyed_digest.restype = None
library.gpkvs_changes_fields.argtypes = []
library.gpkvs_changes_fields.restype = ctypes.c_char_p
library.gpkvs_changes_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_changes_delete.restype = None
library.gpkvs_change_log_new.argtypes = [ctypes.c_uint64]
library.gpkvs_change_log_new.restype = ctypes.c_void_p
for _step in ("delete", "turn_off", "close"):
    _function = getattr(library, f"gpkvs_change_log_{_step}")
    _function.argtypes, _function.restype = [ctypes.c_void_p], None
for _figure in ("newest", "oldest", "bytes"):
    _function = getattr(library, f"gpkvs_change_log_{_figure}")
    _function.argtypes, _function.restype = [ctypes.c_void_p], ctypes.c_uint64
library.gpkvs_change_log_turn_on.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
library.gpkvs_change_log_turn_on.restype = None
library.gpkvs_change_log_tell_table.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 4]
library.gpkvs_change_log_tell_table.restype = None
library.gpkvs_change_log_wait.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 2]
library.gpkvs_change_log_wait.restype = None
library.gpkvs_change_log_read.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 3, *[ctypes.c_void_p] * 3]
library.gpkvs_change_log_read.restype = ctypes.c_uint64
library.gpkvs_own_room_new.argtypes = []
library.gpkvs_own_room_new.restype = ctypes.c_void_p
library.gpkvs_own_room_delete.argtypes = [ctypes.c_void_p]
library.gpkvs_own_room_delete.restype = None
library.gpkvs_own_results.argtypes = [ctypes.c_void_p]
library.gpkvs_own_results.restype = ctypes.c_void_p
library.gpkvs_own_results_fields.argtypes = []
library.gpkvs_own_results_fields.restype = ctypes.c_char_p
library.gpkvs_own_batch_fields.argtypes = []
library.gpkvs_own_batch_fields.restype = ctypes.c_char_p
library.gpkvs_own_batch_new.argtypes = []
library.gpkvs_own_batch_new.restype = ctypes.c_void_p
library.gpkvs_own_batch_set_python.argtypes = [ctypes.c_void_p]
library.gpkvs_own_batch_set_python.restype = None
library.gpkvs_copy_pages.argtypes = [*[ctypes.c_uint64] * 5, ctypes.c_void_p, *[ctypes.c_uint64] * 3]
library.gpkvs_copy_pages.restype = ctypes.c_uint64


def _locked(name: str, *arguments: Any, returns: Any = None) -> Callable[..., Any]:
    """Return a function that keeps Python's lock: it is done before another thread could give the lock back."""
    return ctypes.PYFUNCTYPE(returns, ctypes.c_void_p, *arguments)((name, library))


_WORD = ctypes.c_uint64
journal_durable = _locked("gpkvs_journal_durable", returns=_WORD)
flight_begin = _locked("gpkvs_flight_begin", ctypes.c_void_p, returns=_WORD)
flight_go_on = _locked("gpkvs_flight_go_on")
flight_landed = _locked("gpkvs_flight_landed", returns=_WORD)
frames_try_lock = _locked("gpkvs_frames_try_lock", returns=_WORD)
frames_unlock = _locked("gpkvs_frames_unlock", *[ctypes.py_object] * 3)
frames_begin = _locked("gpkvs_frames_begin", _WORD)
frames_append = _locked("gpkvs_frames_append", ctypes.c_char_p, _WORD, _WORD)
frames_end = _locked("gpkvs_frames_end")
frames_begun = _locked("gpkvs_frames_begun", returns=_WORD)
frames_ended = _locked("gpkvs_frames_ended", ctypes.c_void_p)
frames_last = _locked("gpkvs_frames_last", ctypes.c_void_p)
frames_is_empty = _locked("gpkvs_frames_is_empty", returns=_WORD)
frames_next_sequence = _locked("gpkvs_frames_next_sequence", returns=_WORD)
frames_covered_by = _locked("gpkvs_frames_covered_by", _WORD, returns=_WORD)
frames_used_pages = _locked("gpkvs_frames_used_pages", returns=_WORD)
frames_free = _locked("gpkvs_frames_free", _WORD)
frames_grow = _locked("gpkvs_frames_grow", _WORD)
frames_room_nanoseconds = _locked("gpkvs_frames_room_nanoseconds", returns=_WORD)
# They only launch, which takes microseconds; what they return is an error of the driver, or 0.
batch_plan: Callable[[int, int], int] = _locked("gpkvs_batch_plan", _WORD, returns=ctypes.c_int)
batch_plan_room: Callable[[int], int] = _locked("gpkvs_batch_plan_room", returns=_WORD)
launch_sum: Callable[[int, int, int, int, int, int, int], int] = _locked(
    "gpkvs_launch_sum", *[_WORD] * 6, returns=ctypes.c_int
)
launch_sort: Callable[[int, int, int, int, int, int, int], int] = _locked(
    "gpkvs_launch_sort", *[_WORD] * 6, returns=ctypes.c_int
)
stores_launch: Callable[[int], int] = _locked("gpkvs_launch_stores", returns=ctypes.c_int)
launch_look_up: Callable[[int], int] = _locked("gpkvs_look_up", returns=ctypes.c_int)
launch_read_rows: Callable[[int], int] = _locked("gpkvs_read_rows", returns=ctypes.c_int)
# The time that counts, in microseconds, of its word's address and what two clocks say (kernels/base/counted_time.hpp).
count_time: Callable[[int, int, int], int] = _locked("gpkvs_count_time", ctypes.c_int64, ctypes.c_int64, returns=_WORD)
blobs_map = _locked("gpkvs_blobs_map", *[_WORD] * 4)
blobs_unmap = _locked("gpkvs_blobs_unmap")
blobs_is_mapped = _locked("gpkvs_blobs_is_mapped", returns=_WORD)
waiting_add = _locked("gpkvs_waiting_add", _WORD, ctypes.c_void_p, _WORD, returns=_WORD)
waiting_release = _locked("gpkvs_waiting_release", _WORD, ctypes.c_void_p, returns=_WORD)
waiting_newest = _locked("gpkvs_waiting_newest", returns=_WORD)
waiting_notes = _locked("gpkvs_waiting_notes", returns=_WORD)
waiting_units = _locked("gpkvs_waiting_units", returns=_WORD)
blob_pages_leave = _locked("gpkvs_blob_pages_leave", *[ctypes.c_void_p] * 2, _WORD, returns=_WORD)
blob_pages_take = _locked("gpkvs_blob_pages_take", _WORD, returns=_WORD)
blob_pages_take_spare = _locked("gpkvs_blob_pages_take_spare", *[_WORD] * 3, ctypes.c_void_p, returns=_WORD)
blob_pages_take_place = _locked("gpkvs_blob_pages_take_place", *[_WORD] * 2, *[ctypes.c_void_p] * 2, returns=_WORD)
blob_pages_put = _locked("gpkvs_blob_pages_put", *[_WORD] * 3)
blob_pages_fits = _locked("gpkvs_blob_pages_fits", _WORD, returns=_WORD)
blob_pages_commit = _locked("gpkvs_blob_pages_commit", _WORD)
blob_pages_give_back = _locked("gpkvs_blob_pages_give_back", *[_WORD] * 2)
blob_pages_free_after = _locked("gpkvs_blob_pages_free_after", *[_WORD] * 3)
blob_pages_release = _locked("gpkvs_blob_pages_release", _WORD, returns=_WORD)
blob_pages_newest = _locked("gpkvs_blob_pages_newest", returns=_WORD)
blob_pages_count = _locked("gpkvs_blob_pages_count", ctypes.c_void_p)


def number(name: str) -> int:
    """Return a constant of native code's (`GPKVS_NUMBER` in kernels/cpu.cpp)."""
    return int(ctypes.c_uint64.in_dll(library, f"gpkvs_{name}").value)


def kernel_symbol(name: str) -> KernelSymbol:
    """Return what the library exports for the kernel `name`."""
    return KernelSymbol.in_dll(library, f"gpkvs_kernel_{name}")


def native_step(name: str, *, keeps_lock: bool) -> Callable[[int, int, int], None]:
    """Return a step of the host (`GPKVS_STEP` in space/write_set.hpp): called with its struct, first and last item.

    A call that keeps Python's lock saves the time to hand it over.
    """
    function_type = ctypes.PYFUNCTYPE if keeps_lock else ctypes.CFUNCTYPE
    signature = function_type(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    step: Callable[[int, int, int], None] = signature(kernel_symbol(name).run)
    return step


def launched_kernels() -> tuple[str, ...]:
    """Return the names of the kernels that native code launches, in the order that a launcher has them."""
    return tuple(library.gpkvs_launched().decode().split(";")[:-1])


def audits() -> tuple[str, ...]:
    """Return the names of the audits by their numbers; number 0 is none."""
    return ("", *library.gpkvs_audits().decode().split(";")[:-1])


def keyed_digest(key: tuple[int, int], data: bytes) -> bytes:
    """Return the SipHash-2-4 of some bytes under a store's key, in 16 bytes."""
    digest = ctypes.create_string_buffer(16)
    library.gpkvs_keyed_digest(*key, data, len(data), digest)
    return digest.raw


def crc32c(data: bytes) -> int:
    """Return the CRC32C of `data`, whose length is a multiple of 8 bytes."""
    assert len(data) % 8 == 0
    return int(library.gpkvs_crc32c(data, len(data) // 8))
