"""The gpkvs command: ``gpkvs``, or ``python -m gpkvs.cli``."""

from __future__ import annotations

from gpkvs.cli.interrupt import ctrl_c_ends_at_once, end_at_once_on_ctrl_c
from gpkvs.garbage import loading_modules


def main() -> None:
    """Run the command line."""
    with ctrl_c_ends_at_once(), loading_modules():
        from gpkvs.cli.main import run  # noqa: PLC0415 - it takes long enough that somebody may press Ctrl-C
    try:
        run()
    finally:
        end_at_once_on_ctrl_c()


if __name__ == "__main__":
    main()
