"""The clock: keys expire by it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpkvs.doctor.fact import Fact, Verdict

_SOURCES: Final = Path("sys/devices/system/clocksource/clocksource0")
_SLOW_SOURCES: Final = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen", "pit")
_TIMEX_BYTES: Final = 512  # more than any `struct timex`
_STATUS_OFFSET: Final = 5 * ctypes.sizeof(ctypes.c_long)  # int modes (padded), offset, freq, maxerror, esterror
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC

_SOURCE = "A server reads the clock for each batch; from some sources that is a call into the kernel."
_SYNCHRONISED = "Keys expire by the clock: one that jumps forth ends them early."


def clock_facts(root: Path) -> Iterator[Fact]:
    """Look at where the time comes from, and whether something keeps it right."""
    yield source_fact(root)
    yield synchronised_fact(*_kernel_status())


def source_fact(root: Path) -> Fact:
    """Judge the kernel's source of time."""
    try:
        source = (root / _SOURCES / "current_clocksource").read_text().strip()
    except OSError as error:
        return Fact("clock source", Verdict.UNSEEN, f"/{_SOURCES}: {error.strerror}", _SOURCE)
    figures = {"clock_source": source}
    if source in _SLOW_SOURCES:
        mend = f"echo tsc > /{_SOURCES}/current_clocksource (as root), if available_clocksource has it"
        return Fact("clock source", Verdict.BETTER, f"{source}, which is slow to read", _SOURCE, mend, figures)
    return Fact("clock source", Verdict.FINE, source, _SOURCE, figures=figures)


def _kernel_status() -> tuple[int | None, str]:
    """Return the kernel's status bits of its clock; None, and why, if it does not say them."""
    adjtimex = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    if adjtimex is None:
        return None, "the C library has no adjtimex"
    told = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes is 0: nothing is changed
    if adjtimex(told) < 0:
        return None, f"adjtimex: {os.strerror(ctypes.get_errno())}"
    return ctypes.c_int.from_buffer(told, _STATUS_OFFSET).value, ""


def synchronised_fact(status: int | None, reason: str = "") -> Fact:
    """Judge the status that the kernel's clock has."""
    if status is None:
        return Fact("clock synchronised", Verdict.UNSEEN, reason, _SYNCHRONISED)
    figures = {"synchronised": not status & _UNSYNCHRONISED}
    if status & _UNSYNCHRONISED:
        value = "no: the kernel knows of nothing that keeps it right (a host may, unseen)"
        mend = "apt-get install chrony (in a container: on the host)"
        return Fact("clock synchronised", Verdict.BETTER, value, _SYNCHRONISED, mend, figures)
    return Fact("clock synchronised", Verdict.FINE, "yes", _SYNCHRONISED, figures=figures)
