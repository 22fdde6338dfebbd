"""The compiled kernels: without them nothing else of gpkvs can be loaded, and nothing else be looked at."""

from __future__ import annotations

from importlib import import_module

from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.doctor.installed import install_again
from gpkvs.errors import BackendError, ProcessorError

_WHY = "A store runs its batches in them. Without them neither a server nor the other looks of this command begin."

# A wheel and a build of the source need the same.
_OTHER_PROCESSOR = "another machine; a virtual machine may show what its host has (QEMU: -cpu host)"


def kernels_fact() -> Fact:
    """Load the kernels, and say whether that can be done."""
    try:
        import_module("gpkvs.native")
    except ProcessorError as error:
        return Fact("kernels", Verdict.WRONG, str(error), _WHY, _OTHER_PROCESSOR)
    except (BackendError, OSError) as error:
        return Fact("kernels", Verdict.WRONG, f"cannot be loaded: {error}", _WHY, f"{install_again()}; on this machine")
    return Fact("kernels", Verdict.FINE, "compiled, and loaded", _WHY)
