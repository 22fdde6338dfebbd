"""What takes hours: runs each step with a time limit, goes on after a failure, and keeps the results of all.

One file a run, ``bench/results/nightly/DATE-COMMIT.json``: date, commit, machine, seed, and for each step its command,
seconds, status, what it reported as JSON, and the end of its output if it failed. Exit status 1 if any step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpkvs.bench.report.machine import describe_run

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "bench" / "results" / "nightly"
LOGS = REPOSITORY / "build" / "nightly"
OUTPUT_LINES_MAX = 30


@dataclass(frozen=True)
class Step:
    """One command; the environment has the run's SEED."""

    name: str
    command: str
    small: str  # the same with little to do, to see that it works
    minutes_max: float


STEPS = (
    Step("crash", "gpkvs crash --json --seed $SEED", "gpkvs crash --json --seed $SEED --part 10", 30),
    Step(
        "depth2", "gpkvs crash --json --depth 2 --seed $SEED", "gpkvs crash --json --depth 2 --seed $SEED --part 3", 30
    ),
    Step(
        "growth",
        "gpkvs crash --json --seed $SEED $(for n in 1 2 3 5; do echo --workload bytes:$n --workload u64:$n; done)",
        "gpkvs crash --json --seed $SEED --workload u64:1 --model adr",
        60,
    ),
    Step(
        "growth-kills",
        "GPKVS_ALL_KILLS=1 .venv/bin/python -m pytest -q tests/recovery/startup/test_growth_kills.py",
        ".venv/bin/python -m pytest -q tests/recovery/startup/test_growth_kills.py -k undo-1",
        10,
    ),
    Step(
        "long-records",
        "GPKVS_ALL_HEAPS=1 .venv/bin/python -m pytest -q tests/engine/space/test_long_records.py",
        ".venv/bin/python -m pytest -q tests/engine/space/test_long_records.py -k batch_with",
        20,
    ),
    Step("mutate", "gpkvs crash --json --mutate --seed $SEED", "gpkvs crash --json --mutate --seed $SEED", 20),
    Step(
        "journal",
        "gpkvs crash --commit journal --states 50000 --json --seed $SEED",
        "gpkvs crash --commit journal --states 500 --json --seed $SEED",
        60,
    ),
    Step(
        "engine-phases",
        "gpkvs crash --engine phases --part 100 --json --seed $SEED >&2 &&"
        " gpkvs crash --commit journal --engine phases --states 10000 --json --seed $SEED",
        "gpkvs crash --commit journal --engine phases --states 500 --json --seed $SEED",
        20,
    ),
    Step(
        "mistakes",
        "gpkvs crash --commit journal --mutate --json --seed $SEED",
        "gpkvs crash --commit journal --mutate --mutant no-flush --mutant no-first-frame --json --seed $SEED",
        45,
    ),
    Step("bitflip", "gpkvs bitflip --json --seed $SEED", "gpkvs bitflip --json --bits 200 --bursts 50 --every 400", 90),
    Step(
        "bitflip-journal",
        "gpkvs bitflip --commit journal --json --seed $SEED",
        "gpkvs bitflip --commit journal --json --bits 200 --bursts 50 --every 400",
        90,
    ),
    # Stores of format 3: the others have the format that a new store has.
    Step(
        "format3",
        ".venv/bin/python -m pytest -q -n 3 --dist loadfile --max-worker-restart 0 --format 3 tests"
        " --ignore tests/docs --ignore tests/conformance",
        ".venv/bin/python -m pytest -q --format 3 tests/store/test_store.py",
        60,
    ),
    Step(
        "crash-format3",
        "GPKVS_FORMAT=3 gpkvs crash --json --seed $SEED",
        "GPKVS_FORMAT=3 gpkvs crash --json --seed $SEED --part 3",
        30,
    ),
    Step(
        "bitflip-format3",
        "GPKVS_FORMAT=3 gpkvs bitflip --json --seed $SEED",
        "GPKVS_FORMAT=3 gpkvs bitflip --json --bits 100 --bursts 50 --every 400",
        90,
    ),
    Step(
        "consistency",
        "gpkvs consistency --json --seed $SEED",
        "gpkvs consistency --json --operations 3000 --faults 2",
        60,
    ),
    Step(
        "consistency-copies",
        "gpkvs consistency --operations 200000 --faults 20 --backups 20 --json --seed $SEED",
        "gpkvs consistency --operations 2000 --faults 1 --backups 1 --json --seed $SEED",
        60,
    ),
    Step(
        "watched-undo",
        ".venv/bin/python -m tests.watched.drill --rounds 1000 --commit undo --seed $SEED",
        ".venv/bin/python -m tests.watched.drill --rounds 2 --commit undo --seed $SEED",
        90,
    ),
    Step(
        "watched-journal",
        ".venv/bin/python -m tests.watched.drill --rounds 1000 --commit journal --seed $SEED",
        ".venv/bin/python -m tests.watched.drill --rounds 2 --commit journal --seed $SEED",
        90,
    ),
    Step(
        "damaged-backups",
        "GPKVS_ALL_DAMAGE=1 .venv/bin/python -m pytest -q tests/backup/test_damage.py",
        ".venv/bin/python -m pytest -q tests/backup/test_damage.py",
        20,
    ),
    Step("drill", "gpkvs drill --json --rounds 100 --seed $SEED", "gpkvs drill --json --rounds 2 --seed $SEED", 45),
    Step(
        "soak",
        "gpkvs soak --minutes 10 --json --seed $SEED",
        "gpkvs soak --minutes 0.1 --heap-bytes 16MiB --json --seed $SEED",
        20,
    ),
    Step(
        "soak-journal",
        "gpkvs soak --minutes 10 --commit journal --json --seed $SEED",
        "gpkvs soak --minutes 0.1 --heap-bytes 16MiB --commit journal --json --seed $SEED",
        20,
    ),
    Step(
        "soak-format3",
        "gpkvs soak --minutes 10 --format 3 --json --seed $SEED",
        "gpkvs soak --minutes 0.1 --heap-bytes 8MiB --format 3 --json --seed $SEED",
        20,
    ),
    Step(
        "soak-copies",
        "gpkvs soak --minutes 10 --copies --json --seed $SEED",
        "gpkvs soak --minutes 0.1 --heap-bytes 33MiB --copies --json --seed $SEED",
        20,
    ),
    Step("faults", "GPKVS_ALL_KILLS=1 GPKVS_ALL_ALLOCATIONS=1 make faults", "make faults FAULTS=17", 60),
    Step("allocations", "make sanitize-door GPKVS_ALL_ALLOCATIONS=1", "make sanitize-door", 30),
    Step("mutants", "make mutants", 'make mutants MUTANTS="put-back-reversed" JOBS=1', 60),
    Step("fuzz", "make fuzz SECONDS=1800", "make fuzz SECONDS=5", 45),
    Step("fuzz-doors", "make fuzz-doors SECONDS=1800", "make fuzz-doors SECONDS=5", 45),
    Step("fuzz-frames", "make fuzz-frames SECONDS=1800", "make fuzz-frames SECONDS=5", 90),
    Step("fuzz-served", "make fuzz-served SECONDS=1800 SEED=$SEED", "make fuzz-served SECONDS=5 SEED=$SEED", 60),
    Step("fuzz-redis", "make fuzz-redis SECONDS=1800", "make fuzz-redis SECONDS=5", 45),
    Step("conformance", "make conformance CI=", "CI=true make conformance", 15),
    Step(
        "security", ".venv/bin/python -m tests.tools.tls_scan", ".venv/bin/python -m tests.tools.tls_scan --quick", 20
    ),
    Step(
        "floods",
        "gpkvs bench door --part floods --part crowd --runs 3 --json build/nightly/floods.json >&2;"
        " cat build/nightly/floods.json",
        "gpkvs bench door --part crowd --runs 1 --records 1000 --crowd 10 --seconds 0.1",
        30,
    ),
    Step("clients", ".venv/bin/python -m tests.foreign.run", ".venv/bin/python -m tests.foreign.run", 10),
    Step(
        "logins",
        ".venv/bin/python -m tests.tools.fuzz_logins --seconds 600 --seed $SEED",
        ".venv/bin/python -m tests.tools.fuzz_logins --seconds 5 --seed $SEED",
        20,
    ),
    Step("wheel", ".venv/bin/python -m tests.bare.wheel", ".venv/bin/python -m tests.bare.wheel", 30),
    Step("image", ".venv/bin/python -m tests.bare.image", ".venv/bin/python -m tests.bare.image", 30),
    Step("readme", ".venv/bin/python -m tests.bare.readme", ".venv/bin/python -m tests.bare.readme", 90),
    Step(
        "newest",
        "rm -rf build/newest && make suite docs VENV=build/newest NEWEST=1",
        "rm -rf build/newest && make install-test VENV=build/newest NEWEST=1"
        " && build/newest/bin/python -m pytest -q tests/server/access",
        60,
    ),
    # Whole runs on a busy machine: none may fail by chance.
    Step(
        "loaded",
        ".venv/bin/python -m tests.tools.loaded --times 5 tests -n 3 --dist loadfile --max-worker-restart 0"
        " --ignore tests/docs --ignore tests/conformance",
        ".venv/bin/python -m tests.tools.loaded --times 1 --beside 1 tests/suite/test_no_skips.py",
        600,
    ),
    Step("docs", "make docs-all", ".venv/bin/python -m pytest -q tests/docs/test_session.py", 90),
)


def run(step: Step, *, small: bool, seed: int) -> dict[str, object]:
    """Run a step to its end or its time limit, and return what came of it."""
    command = step.small if small else step.command
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{step.name}.log"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SEED": str(seed)}
    begin = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=60 * step.minutes_max)[0]
            status = "passed" if process.returncode == 0 else f"failed: status {process.returncode}"
        except subprocess.TimeoutExpired:
            # Commands of gpkvs that are told to end kill their children first.
            os.killpg(process.pid, signal.SIGTERM)
            output = ended(process)
            status = f"failed: not done after {step.minutes_max:g} minutes"
    result: dict[str, object] = {
        "name": step.name,
        "command": command,
        "status": status,
        "seconds": round(time.monotonic() - begin, 1),
    }
    if report := parsed(output):
        result["report"] = report
    if status != "passed":
        result["output"] = (log.read_text(errors="replace") + output.decode(errors="replace")).splitlines()[
            -OUTPUT_LINES_MAX:
        ]
    return result


def ended(process: subprocess.Popen[bytes]) -> bytes:
    """Return what a process that was told to end had printed; kill it if it does not end."""
    try:
        return process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def parsed(output: bytes) -> object:
    """Return the JSON that a step printed; None if it printed something else."""
    try:
        return json.loads(output)
    except ValueError:
        return None


def nightly(steps: tuple[Step, ...], results: Path, *, small: bool, seed: int) -> bool:
    """Run steps in order and keep their results; return whether all passed."""
    facts: dict[str, object] = {**describe_run(REPOSITORY), "size": "small" if small else "full", "seed": seed}
    results.mkdir(parents=True, exist_ok=True)
    name = f"{facts['date']}-{str(facts['commit'])[:12]}".replace(":", "")
    done: list[dict[str, object]] = []
    for step in steps:
        print(f"{step.name:8} ", end="", flush=True)
        done.append(run(step, small=small, seed=seed))
        print(f"{done[-1]['seconds']:8} s  {done[-1]['status']}", flush=True)
        # Kept after each step: a run that is cut short leaves what it has.
        (results / f"{name}.json").write_text(json.dumps({**facts, "steps": done}, indent=1) + "\n")
    print(results / f"{name}.json")
    return all(result["status"] == "passed" for result in done)


def main() -> None:
    """Run all steps, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="by default the date")
    parser.add_argument("steps", nargs="*", help="of " + ", ".join(step.name for step in STEPS))
    options = parser.parse_args()
    if unknown := set(options.steps) - {step.name for step in STEPS}:
        parser.error(f"there is no step {', '.join(unknown)}")
    steps = tuple(step for step in STEPS if not options.steps or step.name in options.steps)
    if not nightly(steps, RESULTS, small=options.size == "small", seed=options.seed):
        sys.exit(1)


if __name__ == "__main__":
    main()
