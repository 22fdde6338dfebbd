"""Persistent memory: what the platform promises of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.pm.domain import Domain, platform_domain
from gpkvs.text import counted

_REGIONS: Final = Path("sys/bus/nd/devices")
_WHY = "On persistent memory a batch needs no flush of a disk. A store needs none of it."


def memory_fact(domain: Domain | None, root: Path) -> Fact:
    """Say which persistent memory there is, and whether the folder lies on it."""
    regions = sorted((root / _REGIONS).glob("region*"))
    figures: dict[str, object] = {"regions": len(regions)}
    if not regions:
        return Fact("persistent memory", Verdict.FINE, "none", _WHY, figures=figures)
    found = platform_domain(regions)
    value = f"{counted(len(regions), 'region')}, good for the domain {found}"
    if domain and domain.maps_synchronously:
        value += "; the folder lies on it"
    else:
        value += "; the folder does not map synchronously, so it does not use it"
    return Fact("persistent memory", Verdict.FINE, value, _WHY, figures=figures | {"domain": str(found)})
