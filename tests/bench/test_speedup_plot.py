"""The plot of speedups: bars begin at the base, and go to the left where a way is slower."""

from __future__ import annotations

from xml.etree import ElementTree

from gpkvs.bench.report.speedup_plot import draw_speedups

SVG = "{http://www.w3.org/2000/svg}"


def drawn(speedups: dict[str, dict[str, float]]) -> tuple[float, list[tuple[float, float]]]:
    """Return where the base is, and where each bar begins and ends."""
    root = ElementTree.fromstring(draw_speedups("base", "a note", speedups))
    (base,) = [line for line in root.iter(f"{SVG}line") if line.get("stroke") == "#57606a"]
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.get("height") == "15"]
    ends = [(float(bar.get("x", "")), float(bar.get("x", "")) + float(bar.get("width", ""))) for bar in bars]
    return float(base.get("x1", "")), ends


def test_slower_ways_go_to_the_left() -> None:
    base, ((slow_begin, slow_end), (fast_begin, fast_end), *_) = drawn(
        {"one": {"theirs": 0.25, "ours": 4.0}, "two": {"theirs": 1.0, "ours": 150.0}}
    )
    assert slow_begin < slow_end == base == fast_begin < fast_end
    assert round(base - slow_begin, 1) == round(fast_end - base, 1)  # the scale is logarithmic


def test_all_alike() -> None:
    base, ends = drawn({"one": {"theirs": 1.0, "ours": 1.0}})
    assert all(begin == base for begin, _ in ends)
