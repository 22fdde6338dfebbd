"""The gpkvs command: ``gpkvs``, or ``python -m gpkvs.cli``."""

from __future__ import annotations

import os
import sys

from gpkvs.cli.options.environment import is_handed_over
from gpkvs.cli.terminal.interrupt import ctrl_c_ends_at_once, end_at_once_on_ctrl_c
from gpkvs.process.garbage import loading_modules


def main() -> None:
    """Run the command line, or the server to which it has handed over."""
    # NumPy loads OpenBLAS, which begins a thread for each processor: a tenth of a second, to multiply matrices. Only
    # benchmarks do that, and they measure what a user's own program would.
    if sys.argv[1:2] != ["bench"]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ctrl_c_ends_at_once(), loading_modules():  # it takes long enough that somebody may press Ctrl-C
        if is_handed_over():
            from gpkvs.cli.serving.served import run  # noqa: PLC0415
        else:
            from gpkvs.cli.main import run  # noqa: PLC0415
    try:
        run()
    finally:
        end_at_once_on_ctrl_c()


if __name__ == "__main__":
    main()
