"""Results as tables, for a terminal and for documents."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Rows:
    """A table: a title, headings and lines of text; all columns but the first `left` hold numbers."""

    title: str
    headings: tuple[str, ...]
    lines: list[tuple[str, ...]]
    left: int = 1

    def rich(self) -> Table:
        """Return it for a terminal."""
        table = Table(title=self.title, title_justify="left")
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if number < self.left else "right")
        for line in self.lines:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        """Return it for a document."""
        rule = [" --- " if number < self.left else " ---: " for number in range(len(self.headings))]
        lines = [_row(self.headings), "|" + "|".join(rule) + "|", *map(_row, self.lines)]
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def comparisons(result: dict[str, Any]) -> Rows:
    """Return the rows that have targets: each the median of the ratios of rounds in which both sides took turns."""
    lines: list[tuple[str, ...]] = [
        (
            one["what"],
            one["store"],
            one["beside"],
            f"{ratio_text(one['ratio'])}{' overall' if one['is_overall'] else ''}",
            f"{ratio_text(one['lowest'])} to {ratio_text(one['highest'])}",
            _aim_text(one),
            one["note"],
        )
        for one in result["comparisons"]
    ]
    headings = ("what", "of", "over", "ratio, median", "lowest to highest", "aim", "meanwhile")
    rounds = result["parameters"]["runs"]
    title = "ratios of one run" if rounds == 1 else f"ratios of {rounds} rounds, taken in turn"
    return Rows(title, headings, lines, left=3)


def _aim_text(one: dict[str, Any]) -> str:
    """Write an aim, and whether it is met."""
    if one["aim"] is None:
        return ""
    return f"{'at least' if one['is_least'] else 'at most'} {one['aim']:g}: {'met' if one['is_met'] else 'missed'}"


def throughput(result: dict[str, Any]) -> Rows:
    """Return the throughput of each contender at each task, and the ratios."""
    ratios = {(ratio["task"], ratio["peer"]): ratio for ratio in result["ratios"]}
    lines: list[tuple[str, ...]] = []
    for measurement in sorted(result["measurements"], key=lambda found: _place(result, found["task"])):
        ratio = ratios.get((measurement["task"], measurement["contender"]))
        latencies = measurement["latencies_ms"]
        lines.append(
            (
                measurement["task"],
                measurement["contender"],
                rate_text(measurement["rate"]),
                f"{rate_text(measurement['rate_min'])} to {rate_text(measurement['rate_max'])}",
                ", ".join(map(_milliseconds, latencies.values())),
                ratio_text(ratio["ratio"]) if ratio else "",
                f"{ratio['aim']:g}" if ratio and ratio["aim"] else "",
            )
        )
    names = result["measurements"][0]["latencies_ms"] if result["measurements"] else ()
    headings = (
        "task",
        "store",
        "a second, median",
        "lowest to highest",
        f"{', '.join(names)}, ms",
        "gpkvs is faster, times",
        "aim",
    )
    return Rows(title_of(result), headings, lines, left=2)


def _place(result: dict[str, Any], task: str) -> int:
    return next(number for number, found in enumerate(result["measurements"]) if found["task"] == task)


def rate_text(rate: float) -> str:
    """Write operations a second."""
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{float(f'{rate:.3g}'):,.0f}"


def gigabytes_text(rate: float) -> str:
    """Write bytes a second."""
    return f"{rate / 1e9:.2f} GB/s"


def ratio_text(ratio: float) -> str:
    """Write how many times as fast."""
    return f"{ratio:.1f}" if ratio >= 3 else f"{ratio:.2f}"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def title_of(result: dict[str, Any]) -> str:
    """Say what was measured."""
    parameters = result["parameters"]
    runs = "one run" if parameters["runs"] == 1 else f"median of {parameters['runs']} runs"
    return f"{result['benchmark']}, promise {result['promise']}: {parameters['records']:,} records, {runs}"


def phases(result: dict[str, Any]) -> Rows:
    """Return the shares of the phases of gpkvs's transactions, a column for each task."""
    tasks = list(result["phases"])
    names = [name for task in tasks for name in result["phases"][task]]
    sums = {task: sum(result["phases"][task].values()) for task in tasks}
    lines = [
        (name, *(_share(result["phases"][task].get(name, 0.0), sums[task]) for task in tasks))
        for name in dict.fromkeys(names)
    ]
    return Rows("time of gpkvs by phase of the transaction, %", ("phase", *tasks), lines)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if part and whole else ""


def resources(result: dict[str, Any]) -> Rows:
    """Return the processor time of an operation, in the server and in the client."""
    names = ("server_cpu_us", "engine_us", "empty_server_cpu_us", "client_cpu_us")
    lines = [
        (task, *(f"{spent[name]:.3g}" if name in spent else "" for name in names))
        for task, spent in result["spent"].items()
    ]
    headings = ("task", "server, CPU µs", "of it in the engine, µs", "an empty gRPC server, CPU µs", "client, CPU µs")
    return Rows("time of gpkvs for one operation", headings, lines)


def memory(result: dict[str, Any]) -> Rows:
    """Return the resident memory of a server."""
    found = result["memory"]
    lines = [
        (step, *(f"{found[step][name] / (1 << 20):,.0f}" for name in ("other_bytes", "store_bytes")))
        for step in ("empty", "loaded", "read")
    ]
    title = f"resident memory of a server with {found['records']:,} records of {found['value_bytes']:,} B, MiB"
    return Rows(title, ("after", "beyond the store", "mapped store"), lines)


def start(result: dict[str, Any]) -> Rows:
    """Return start-up times."""
    lines: list[tuple[str, ...]] = [
        (
            one["shape"],
            f"{one['records']:,}",
            f"{one['store_bytes'] / (1 << 20):,.0f}",
            f"{median(one['clean_seconds']):.2f}",
            f"{median(one['killed_seconds']):.2f}",
        )
        for one in result["start"]
    ]
    headings = ("records", "number", "store, MiB", "after a stop, s", "after kill -9, s")
    return Rows("from the start of the process to SERVING", headings, lines)


def metrics_cost(result: dict[str, Any]) -> Rows:
    """Return what metrics cost."""
    lines: list[tuple[str, ...]] = [
        (
            task,
            *(rate_text(median(one["rate"] for one in found[which])) for which in ("with", "without")),
            f"{found['cost_percent']:.1f}",
            f"{found['cpu_cost_percent']:.1f}",
        )
        for task, found in result["metrics_cost"].items()
    ]
    headings = ("task", "with, a second", "without", "throughput lost, %", "more CPU an operation, %")
    return Rows("cost of metrics, medians of pairs of runs", headings, lines)


def token_cost(result: dict[str, Any]) -> Rows:
    """Return what a token costs a single call; only the login alone is above the noise of a call."""
    found = result["token"]
    lines: list[tuple[str, ...]] = [
        (name, f"{found[kind]['without_us']:,.0f}", f"{found[kind]['cost_us']:+.1f}", _middle(found[kind]), "")
        for name, kind in (("time of a call", "wall"), ("CPU of the server", "server_cpu"))
    ]
    aim = f"at most {found['aim_us']:g}: {'met' if result['login_us'] <= found['aim_us'] else 'missed'}"
    lines.append(("the login alone", "", f"{result['login_us']:+.2f}", "", aim))
    headings = ("a single SET", "without a token, µs", "more with one, µs", "middle half of the pairs", "aim")
    return Rows("cost of a token, medians of pairs of runs", headings, lines)


def _middle(found: dict[str, Any]) -> str:
    return " to ".join(f"{cost:+.1f}" for cost in found["middle_us"])


def handshakes(result: dict[str, Any]) -> Rows:
    """Return how many connections with TLS a server opens."""
    found = result["handshakes"]
    line = (rate_text(found["rate"]), f"{found['server_cpu_us']:,.0f}")
    return Rows("TLS handshakes", ("a second", "CPU of the server for one, µs"), [line], left=0)


def calls(result: dict[str, Any]) -> Rows:
    """Return the calls of functions in the server for a message."""
    lines: list[tuple[str, ...]] = [
        (operation, f"{int(size):,}", f"{one['calls_per_message']:,.1f}", f"{one['objects_most']:,}")
        for operation, found in result["calls"].items()
        for size, one in found.items()
    ]
    headings = (
        "message",
        "operations",
        "calls of functions, of Python and of C",
        "most objects at a time, beyond those before",
    )
    return Rows("what the server's Python does for a message", headings, lines)


def top_functions(result: dict[str, Any]) -> Rows:
    """Return where the server's processor time goes, in the largest message."""
    lines: list[tuple[str, ...]] = []
    for operation, found in result["calls"].items():
        largest = found[max(found, key=int)]
        for name, entry in list(largest["functions"].items())[:10]:
            lines.append(
                (
                    operation,
                    name,
                    f"{entry['calls_per_message']:,.1f}",
                    f"{entry['cpu_us_per_message']:,.0f}",
                )
            )
    headings = ("message", "function", "calls", "CPU µs, without what it calls")
    return Rows("where the counting server spends a message's time", headings, lines, left=2)


def left_out(result: dict[str, Any]) -> Rows:
    """Return what was not measured."""
    return Rows("left out", ("what", "why"), list(result["left_out"].items()), left=2)


_SECTIONS = {
    "memory": memory,
    "start": start,
    "metrics_cost": metrics_cost,
    "calls": calls,
    "token": token_cost,
    "handshakes": handshakes,
    "left_out": left_out,
}


def tables_of(result: dict[str, Any], *, profile: bool) -> list[Rows]:
    """Return the tables of a result; with `profile` also where the time went."""
    found = [comparisons(result)] if result.get("comparisons") else []
    found += [throughput(result)] if result["measurements"] else []
    found += [table(result) for name, table in _SECTIONS.items() if name in result]
    if profile:
        if result.get("phases"):
            found.append(phases(result))
        if "spent" in result:
            found.append(resources(result))
        if "calls" in result:
            found.append(top_functions(result))
    return found
