"""A watcher under kill -9, again and again: no change is missing unless it hears so.

``python -m tests.watched.drill --rounds 1000 --commit journal --seed 7``. Writers write to a server, and remember what
was acknowledged. A watcher, a process of its own, keeps what it is told. In each round the watcher is killed, and goes
on in a new process. Then the server is killed, at a random moment or at a failpoint, sometimes while no watcher is
there, and starts again on its store. After each kill the watcher has exactly what was done since (judge.py), or it has
heard that changes are lost, and has begun anew. Some servers hold so few changes that a watcher falls behind.

A server that lives goes on with its watcher where that holds what comes next; the drill fails otherwise. Both outcomes
are honest behind a death of the server, and counted. Exit status 1 if anything is wrong; the files are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpkvs.bench.peers.ports import free_port
from gpkvs.changes import Position
from gpkvs.process import failpoint
from gpkvs.proto.v1 import kv_pb2
from tests import warm
from tests.conftest import assert_clean
from tests.serving import Server
from tests.watched.judge import Judge
from tests.watched.told import Began, Heard, Reader, position_behind
from tests.watched.writers import Writers

ROUNDS_OF_STORE = 40
_WRITERS = 3
_LOAD_SECONDS, _SHORT_SECONDS = (0.02, 0.2), (0.0, 0.08)
_POINT_SECONDS_MAX = 1.0  # a failpoint that has not come in that time is replaced by a SIGKILL
_SECONDS_MAX = 120
_FEW_BYTES = "64KiB"


class WrongError(Exception):
    """A watcher, or a writer, was told something that is wrong."""


class Watcher:
    """The process, again and again."""

    def __init__(self, target: str, folder: Path) -> None:
        self._target, self._folder = target, folder
        self.path = folder / "told"
        self.start()

    def start(self) -> None:
        """Start it."""
        with (self._folder / "watcher.log").open("ab") as log, Path(os.devnull).open("r+b") as null:
            arguments = ["-m", "tests.watched.watcher", self._target, str(self.path)]
            self.process = warm.start(arguments, os.environ, null, null, log)

    def kill(self) -> None:
        """Kill it."""
        if (code := self.process.poll()) is not None:
            raise WrongError(f"the watcher ended by itself, with {code}: see {self._folder}/watcher.log")
        self.process.kill()
        self.process.wait()


class StoreDrill:
    """A store, its server, writers and a watcher.

    Parameters
    ----------
    folder
        For all files.
    seed
        Of the choices; when a kill strikes, the machine decides.
    commit
        Of the store.
    counts
        What happens is counted there.
    """

    def __init__(self, folder: Path, seed: str, commit: str, counts: Counter[str]) -> None:
        self._folder, self._counts = folder, counts
        self._random = random.Random(seed)
        self._points = failpoint.SERVING_BY_COMMIT[commit][0]
        self._holds_few = self._random.random() < 0.25
        # In format 4 a watcher that has read all goes on behind a restart of its server.
        self._format = self._random.choice(("3", "4"))
        self._options = ["--commit", commit, "--format", self._format, "--listen", f"127.0.0.1:{free_port()}"]
        if self._holds_few:
            self._options += ["--changes-bytes", _FEW_BYTES]
        self._writers = Writers(_WRITERS, seed, 0.0 if self._holds_few else 0.003)
        self._judge = Judge(self._writers.written)
        self._server = self._start("")
        self._watcher = Watcher(self._server.target, folder)
        self._reader = Reader(self._watcher.path)
        self._at: Position | None = None  # of the watcher

    def run(self, rounds: int) -> None:
        """Kill, and judge.

        Raises
        ------
        WrongError
            If anything is wrong.
        """
        try:
            self._settle("the first beginning")
            for _ in range(rounds):
                self._kill_watcher()
                self._kill_server()
            self._counts["requests"] += self._writers.requests
            self._counts["entries told"] += self._judge.entries
            self._counts["parts told"] += self._judge.in_parts
            self._watcher.kill()
            self._server.stop()
        finally:
            self._watcher.process.kill()
            self._server.kill()
            self._writers.join()
            self._server.channel.close()
        assert_clean(self._folder / "store")

    def _start(self, armed: str) -> Server:
        return Server(self._folder / "store", self._folder, *self._options, env={failpoint.VARIABLE: armed})

    def _kill_watcher(self) -> None:
        self._writers.start(self._server.target)
        self._pause(_LOAD_SECONDS)
        self._watcher.kill()
        self._pause(_SHORT_SECONDS)
        self._watcher.start()
        self._pause(_SHORT_SECONDS)
        self._writers.stop()
        outcome = self._settle("a kill of the watcher")
        if outcome != "went on" and not self._holds_few:
            raise WrongError("the watcher was killed, and heard that changes are lost which its server holds")

    def _kill_server(self) -> None:
        """Have the server die, and perhaps the watcher a moment before, and start again."""
        how = self._random.choices(("sigkill", "failpoint", "restart"), (6, 4, 1))[0]
        if how != "sigkill":
            self._server.stop()
            # At a failpoint it dies by itself, in the middle of a batch.
            point = f"{self._random.choice(self._points)}:{self._random.randint(1, 60)}"
            self._server = self._start(point if how == "failpoint" else "")
        self._writers.start(self._server.target)
        self._pause(_LOAD_SECONDS)
        is_away = self._random.random() < 0.3
        if is_away:
            self._watcher.kill()
            self._pause(_SHORT_SECONDS)
        if how == "restart":
            self._writers.stop()
            self._server.stop()
        elif not (how == "failpoint" and self._dies()):
            how = "sigkill"
        self._counts[f"ends of a server: {how}"] += 1
        self._server.kill()
        self._writers.join()
        self._server.channel.close()
        self._server = self._start("")
        self._writers.settle(self._server.target)
        self._writers.start(self._server.target)
        if is_away:
            self._watcher.start()
        self._pause(_LOAD_SECONDS)
        self._writers.stop()
        what = "a restart" if how == "restart" else "a death"
        self._settle(f"{what} of the server" + " while no watcher was there" * is_away)

    def _dies(self) -> bool:
        give_up = time.monotonic() + _POINT_SECONDS_MAX
        while (code := self._server.process.poll()) is None and time.monotonic() < give_up:
            time.sleep(0.005)
        if code not in (None, -signal.SIGKILL):
            raise WrongError(f"the server ended with {code}")
        return code is not None

    def _settle(self, behind: str) -> str:
        """Wait until the watcher has read all there is, judge it, and count how it went on."""
        newest, found, give_up = self._newest(), list[Heard](), time.monotonic() + _SECONDS_MAX
        while not (self._at and self._at.timeline == newest.timeline and self._at.reaches(newest)):
            if self._watcher.process.poll() is not None:
                raise WrongError(f"the watcher ended: see {self._folder}/watcher.log")
            if time.monotonic() > give_up:
                raise WrongError(f"behind {behind} the watcher came to {self._at}, and never to {newest}")
            time.sleep(0.005)
            if news := list(self._reader.news()):
                found += news
                self._at = position_behind(news[-1])
        self._judge.hear(found)
        self._judge.require_all()
        if problems := [*self._writers.problems, *self._judge.problems]:
            raise WrongError("\n  ".join([f"behind {behind}:", *problems[:20]]))
        began = any(isinstance(heard, Began) for heard in found)
        outcome = "began anew" if began else "went on"
        server = f"{', holds few changes' * self._holds_few}, format {self._format}"
        self._counts[f"{outcome} behind {behind}{server}"] += 1
        return outcome

    def _newest(self) -> Position:
        """Return the position of the last transaction."""
        stream = self._server.kv.Watch(kv_pb2.WatchRequest(only_position=True), timeout=_SECONDS_MAX)
        try:
            return Position.parse(next(stream).position)
        finally:
            stream.cancel()

    def _pause(self, bounds: tuple[float, float]) -> None:
        time.sleep(self._random.uniform(*bounds))


def drill(
    rounds: int, seed: int, commit: str, folder: Path, on_store: Callable[[Counter[str]], None] = lambda _: None
) -> Counter[str]:
    """Run all rounds, on one store after the other; return what happened.

    Raises
    ------
    WrongError
        If anything is wrong; the files of that store are left.
    """
    counts: Counter[str] = Counter()
    for first in range(0, rounds, ROUNDS_OF_STORE):
        place = folder / f"{first}"
        place.mkdir()
        here = min(ROUNDS_OF_STORE, rounds - first)
        StoreDrill(place, f"{seed} {first}", commit, counts).run(here)
        shutil.rmtree(place)
        counts["stores"] += 1
        counts["rounds"] += here
        on_store(counts)
    return counts


def main() -> None:
    """Run the drill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--commit", choices=["undo", "journal"], default="journal")
    given = parser.parse_args()
    print(f"seed {given.seed}", file=sys.stderr, flush=True)
    folder, began = Path(tempfile.mkdtemp(prefix="gpkvs-watched-")), time.monotonic()

    def tell(counts: Counter[str]) -> None:
        so_far = json.dumps(dict(sorted(counts.items())))
        print(f"{time.monotonic() - began:.0f} s: {so_far}", file=sys.stderr, flush=True)

    try:
        counts = drill(given.rounds, given.seed, given.commit, folder, tell)
    except BaseException:
        print(f"FAILED: --seed {given.seed} --commit {given.commit}; the files are in {folder}", file=sys.stderr)
        raise
    folder.rmdir()
    report = {"seed": given.seed, "commit": given.commit, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(report | {"counts": dict(sorted(counts.items()))}, indent=1))


if __name__ == "__main__":
    try:
        main()
    except WrongError as error:
        sys.exit(str(error))
