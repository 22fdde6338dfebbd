"""gpkvs doctor: what this machine gives a store, what is wrong, and what mends it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import print_json
from gpkvs.doctor.fact import Group, Verdict
from gpkvs.doctor.kernels import kernels_fact
from gpkvs.doctor.report import as_dict, lines_of, worst

EXIT_WRONG = 1


@exits(
    {
        0: "all is fine, or could be better",
        EXIT_WRONG: "something is wrong: it loses data, or stops a server",
        143: "SIGTERM",
    }
)
def doctor_command(
    data: Annotated[
        Path | None,
        typer.Option(
            help="The store's directory, which need not be there yet.",
            envvar="GPKVS_DATA",
            show_default="the current folder, in which one may be made",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Say what this machine gives a store, what is wrong, and the command that mends it.

    It looks at the folder, its file system and flushes, memory, processors, open files, the clock, GPUs and gpkvs
    itself. It changes nothing: the file of 1 MiB with which it tries the folder is removed. It is the machine as this
    shell has it; a service may have other limits and another user.

    Example: gpkvs doctor --data /var/lib/gpkvs
    """
    groups = _groups(data)
    if as_json:
        print_json(as_dict(groups))
    else:
        typer.echo("\n".join(lines_of(groups)))
    if worst(groups) is Verdict.WRONG:
        raise typer.Exit(EXIT_WRONG)


def _groups(data: Path | None) -> list[Group]:
    kernels = kernels_fact()
    if kernels.verdict is Verdict.WRONG:
        return [Group("software", [kernels])]
    from gpkvs.cli.terminal.cleanup import ended_by_signals  # noqa: PLC0415 - these load the kernels, which may be missing
    from gpkvs.doctor.examine import examine  # noqa: PLC0415

    with ended_by_signals():
        return examine(data)
