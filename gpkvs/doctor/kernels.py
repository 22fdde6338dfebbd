"""The compiled kernels: without them nothing else of gpkvs can be loaded, and nothing else be looked at."""

from __future__ import annotations

from importlib import import_module

from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.errors import BackendError

_WHY = "A store runs its batches in them. Without them neither a server nor the other looks of this command begin."


def kernels_fact() -> Fact:
    """Load the kernels, and say whether that can be done."""
    try:
        import_module("gpkvs.native")
    except (BackendError, OSError) as error:
        mend = "make install (or pip install .), on the machine that runs it"
        return Fact("kernels", Verdict.WRONG, f"cannot be loaded: {error}", _WHY, mend)
    return Fact("kernels", Verdict.FINE, "compiled, and loaded", _WHY)
