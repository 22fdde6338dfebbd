"""Nine workloads on persistent memory, after GPM's Table 1 (ASPLOS '22, section 4)."""

from __future__ import annotations

from importlib import import_module

from gpkvs.bench.gpm.workload import Workload

CLASSES = {
    "prefix_sum": "PrefixSum",
    "bfs": "Bfs",
    "srad": "Srad",
    "gpdb": "Gpdb",
    "kvs": "Kvs",
    "dnn": "Dnn",
    "cfd": "Cfd",
    "black_scholes": "BlackScholes",
    "hotspot": "Hotspot",
}


def workload(name: str) -> type[Workload]:
    """Return a workload by the name of its file."""
    found: type[Workload] = getattr(import_module(f"{__name__}.{name}"), CLASSES[name])
    return found
