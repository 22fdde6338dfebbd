"""gpkvs bench engine: the engine beside other embedded stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from gpkvs.bench.engine.benchmark import EngineOptions, run_engine, steps
from gpkvs.bench.engine.workload import SHAPES
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.peers.embedded_stores import PeerName
from gpkvs.bench.report.tables import tables_of
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROFILE, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def engine_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = EngineOptions.promise,
    records: Annotated[
        int, typer.Option(help="Records that are loaded before anything is timed.", min=1)
    ] = EngineOptions.records,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = EngineOptions.batch,
    runs: Annotated[int, typer.Option(help="Runs of each measurement; the median counts.", min=1)] = EngineOptions.runs,
    batches: Annotated[int, typer.Option(help="Batches in a run, at most.", min=1)] = EngineOptions.batches_max,
    seconds: Annotated[
        float, typer.Option(help="Timed seconds in a run, at most (but at least three batches).", min=0)
    ] = EngineOptions.seconds_max,
    shape: Annotated[
        list[str] | None,
        typer.Option(help=f"Shape of the records: {', '.join(SHAPES)}; by default all. May be repeated."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(get_args(PeerName))}, or none; by default all."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help=PROFILE)] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Batches on the embedded store, beside LMDB and RocksDB.

    All stores get the same batches of uniform keys, one after the other, and keep the same promise. Install the peers
    with pip install 'gpkvs[bench]'; docs/performance.md says how each is set up and what is timed. With the defaults
    the benchmark takes some minutes and 4 GiB of the file system.

    Example: gpkvs bench engine --records 1000000 --json bench/results/engine-process.json
    """
    options = EngineOptions(
        directory=directory,
        promise=promise,
        records=records,
        batch=batch,
        runs=runs,
        batches_max=batches,
        seconds_max=seconds,
        shapes=tuple(SHAPES[name] for name in chosen("shape", shape, tuple(SHAPES))),
        peers=chosen("peer", peer, get_args(PeerName)),
    )
    with failures_exit(1), ended_by_signals(), shown(steps(options)) as show:
        result = run_engine(options, show)
    print_result(tables_of(result, profile=profile), result, json_file)
