"""The results of `gpkvs bench gpm` as tables and as a picture, beside what the paper says (GPM, ASPLOS '22)."""

from __future__ import annotations

from statistics import median
from typing import Any, Final, NamedTuple

from gpkvs.bench.gpm.benchmark import GPM
from gpkvs.bench.gpm.cap import MODES
from gpkvs.bench.report.plot import place_of
from gpkvs.bench.report.speedup_plot import draw_speedups
from gpkvs.bench.report.tables import Rows, ratio_text


class Paper(NamedTuple):
    """What the paper says of a workload: its text on figure 9, which has no table of numbers, and tables 4 and 5."""

    speedup: str
    write_amplification: float | None = None
    restoration_percent: float | None = None
    elsewhere: str = ""  # what measures restoration


_CHECKPOINTS, _NATIVE = "11 to 18", "5 to 85"
PAPER: Final = {
    "gpKVS": Paper("7 to 8; CAP-mm 2", 39.38, 18.96, "gpkvs bench paper"),
    "gpKVS (95:5)": Paper("less than of SETs"),
    "gpDB (I)": Paper("3.6 over CAP-mm", 1.27, 0.01),
    "gpDB (U)": Paper("2.6 over CAP-mm", 19.88, 10.43),
    "DNN": Paper(_CHECKPOINTS, 1.0, 0.12),
    "CFD": Paper(_CHECKPOINTS, 1.0, 0.30),
    "BLK": Paper(_CHECKPOINTS, 1.0, 0.80),
    "HS": Paper(_CHECKPOINTS, 1.0, 1.65),
    "BFS": Paper(f"{_NATIVE}, the most", 1.0),
    "SRAD": Paper(_NATIVE, 1.0),
    "PS": Paper(_NATIVE, 1.0),
}
_LOG_SPEEDUP: Final = 3.6  # coalesced over conventional: the mean of figure 11(b), by its text


def gpm_tables(result: dict[str, Any]) -> list[Rows]:
    """Return a result as tables."""
    found = [_library(result)] if "library" in result else []
    if "operations" in result:
        found += [_speed(result), _amount(result)]
        if result["not_run"]:
            found.append(Rows("not run", ("workload", "why"), list(result["not_run"].items()), left=2))
    return [*found, _logs(result)] if "logs" in result else found


def _library(result: dict[str, Any]) -> Rows:
    lines: list[tuple[str, ...]] = [
        (
            row["what"],
            f"{row['value']:.3g} {row['unit']}",
            f"{row['limit']:.3g} {row['unit']}, {row['of']}" if row["limit"] else "",
            f"{row['part']:.0%}" if row["limit"] else "",
            _aim(row) if row["aim"] and result["options"]["size"] == "paper" else "",
        )
        for row in result["library"]
    ]
    title = f"the library on {result['gpu'] or 'the CPU'}, size {result['options']['size']}"
    return Rows(title, ("what", "found", "limit, of the same run", "of it", "aim"), lines, left=1)


def _aim(row: dict[str, Any]) -> str:
    return f"{row['aim']:.0%}" if row["limit"] else f"{row['aim']:.3g} {row['unit']}"


def _speed(result: dict[str, Any]) -> Rows:
    lines: list[tuple[str, ...]] = [
        (
            one["name"],
            one["what"],
            *(_ms(median(one["seconds"][mode])) for mode in (*MODES, GPM)),
            *(ratio_text(one["speedup"][mode]) for mode in (MODES[1], GPM)),
            PAPER[one["name"]].speedup,
            f"{_ms(one['limit_seconds'])} ({one['share_of_limit']:.0%})",
        )
        for one in result["operations"]
    ]
    headings = (
        "workload",
        "operation",
        *(f"{mode}, ms" for mode in (*MODES, GPM)),
        *(f"{mode} over CAP-fs" for mode in (MODES[1], GPM)),
        "GPM over CAP-fs, in the paper's text",
        "limit, ms (reached)",
    )
    title = f"time to persist on {result['gpu'] or 'the CPU'}, size {result['options']['size']} (GPM's figure 9)"
    return Rows(title, headings, lines, left=2)


def _amount(result: dict[str, Any]) -> Rows:
    lines: list[tuple[str, ...]] = []
    for one in result["operations"]:
        paper = PAPER[one["name"]]
        share, said = one.get("restoration_share"), paper.restoration_percent
        lines.append(
            (
                one["name"],
                _mb(one["stored_bytes"]),
                _mb(one["log_bytes"]) if one["log_bytes"] else "",
                _mb(one["cap_bytes"]),
                f"{one['write_amplification']:.2f}",
                f"{paper.write_amplification:.2f}" if paper.write_amplification else "",
                _ms(median(one["restore_seconds"])) if share is not None else "",
                f"{100 * share:.2f}" if share is not None else paper.elsewhere,
                f"{said:.2f}" if said is not None else "",
            )
        )
    headings = (
        "workload",
        "GPM stores, MB",
        "its log, MB",
        "CAP stores, MB",
        "write amplification",
        "paper, table 4",
        "restoration, ms",
        "of the workload's time, %",
        "paper, table 5, %",
    )
    return Rows("what is stored, and what restoration takes", headings, lines)


def _logs(result: dict[str, Any]) -> Rows:
    lines: list[tuple[str, ...]] = [
        (
            f"{one['threads']:,}",
            f"{one['partitions']:,}",
            f"{one['coalesced_ms']:.3g}",
            f"{one['conventional_ms']:.3g}",
            ratio_text(one["conventional_ms"] / one["coalesced_ms"]),
            f"{_LOG_SPEEDUP:g}",
            f"{one['limit_ms']:.3g} ({one['limit_ms'] / one['coalesced_ms']:.0%})",
        )
        for one in result["logs"]
    ]
    headings = (
        "threads",
        "partitions",
        "coalesced, ms",
        "conventional, ms",
        "coalesced is faster, times",
        "paper, figure 11(b), mean",
        "limit, ms (reached)",
    )
    rate = result["stream_bytes_per_s"] / 1e9
    return Rows(f"an entry of 64 B from each thread; stores in a stream: {rate:.3g} GB/s", headings, lines, left=0)


def _ms(seconds: float) -> str:
    return f"{float(f'{seconds * 1e3:.3g}'):,g}"


def _mb(count: float) -> str:
    return f"{float(f'{count / 1e6:.3g}'):,g}"


def draw_gpm(result: dict[str, Any]) -> str:
    """Return an SVG like figure 9."""
    note = f"{result['gpu'] or 'CPU'}, size {result['options']['size']}; {place_of(result)}"
    rows = {one["name"]: {mode: one["speedup"][mode] for mode in (MODES[1], GPM)} for one in result["operations"]}
    return draw_speedups(MODES[0], note, rows)
