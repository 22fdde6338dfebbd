"""The folder of a store: whether this user may write there, what survives there, and how a new store would commit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.errors import GpkvsError, StoreError
from gpkvs.media.directory import ROOT_FILE, store_exists
from gpkvs.pm.domain import Domain, find_domain
from gpkvs.recovery.startup.opening import choose_commit


@dataclass(frozen=True)
class Folder:
    """Where a store lies, or would lie.

    Parameters
    ----------
    asked
        What the user named; None for the current folder, in which a store may be made.
    found
        The same, or if it is not there the folder in which `gpkvs serve` would make it.
    domain
        Its persistence domain; None if it cannot be found.
    problem
        Why no file can be made there; "" if that can be.
    """

    asked: Path | None
    found: Path
    domain: Domain | None
    problem: str

    @property
    def has_store(self) -> bool:
        """Whether there is a store."""
        return os.path.lexists(self.found / ROOT_FILE)

    @property
    def commit(self) -> str:
        """How the batches of a new store would become durable: ``undo`` or ``journal``; "" if that is not known."""
        with suppress(GpkvsError):
            return choose_commit("auto", self.domain).name.lower() if self.domain else ""
        return ""


def find_folder(asked: Path | None) -> Folder:
    """Look at a folder, or where it is not there at the one in which it would be made."""
    asked = asked.absolute() if asked else None
    wanted = asked or Path.cwd()
    found = next(above for above in (wanted, *wanted.parents) if os.path.lexists(above))
    problem = _problem(found)
    domain = None
    if not problem:
        try:
            domain = find_domain(found, "auto")
        except (OSError, GpkvsError) as error:
            problem = str(error)
    return Folder(asked, found, domain, problem)


def _problem(found: Path) -> str:
    if not found.exists():
        return f"{found} is a link to nothing"
    if not found.is_dir():
        return f"{found} is a file, and a store is a directory"
    if os.statvfs(found).f_flag & os.ST_RDONLY:
        return f"the file system of {found} is read-only"
    if not os.access(found, os.W_OK | os.X_OK):
        return f"user {os.geteuid()} may not write in {found}"
    return ""


def folder_facts(folder: Folder) -> Iterator[Fact]:
    """Say whether a store can be there, and what it would survive."""
    yield _place(folder)
    if folder.domain:
        yield _durability(folder.domain)
        yield _commit(folder.domain)
    else:
        for name, why in (("durability", _DURABILITY), ("commit", _COMMIT)):
            yield Fact(name, Verdict.UNSEEN, "no file can be made there", why)


_PLACE = "A server makes its files there, as the user that runs it."
_DURABILITY = "A write that was acknowledged is there after all that the domain survives, and after nothing else."
_COMMIT = "It tells how a batch becomes durable: with one flush of a journal, or in place under an undo log."


def _place(folder: Folder) -> Fact:
    found, figures = folder.found, {"looked_at": str(folder.found), "user": os.geteuid()}
    if folder.problem:
        is_owners = found.is_dir() and not os.statvfs(found).f_flag & os.ST_RDONLY
        owner = f"chown {os.geteuid()} {shlex.quote(str(found))} (as root), or " if is_owners else ""
        return Fact("folder", Verdict.WRONG, folder.problem, _PLACE, f"{owner}another --data", figures)
    if folder.asked is None:
        return Fact(
            "folder", Verdict.FINE, f"{found}, where gpkvs serve --data NAME makes a store", _PLACE, figures=figures
        )
    if found != folder.asked:
        value = f"{folder.asked} is not there: gpkvs serve makes it, and this looks at {found}"
        return Fact("folder", Verdict.FINE, value, _PLACE, figures=figures)
    try:
        has_store = store_exists(found)
    except StoreError as error:
        value = str(error).partition(": ")[0]
        return Fact("folder", Verdict.WRONG, value, _PLACE, "--data with an empty folder, or a new one in it", figures)
    value = f"{found}, {'with' if has_store else 'without'} a store"
    return Fact("folder", Verdict.FINE, value, _PLACE, figures=figures | {"has_store": has_store})


def _durability(domain: Domain) -> Fact:
    figures = {"domain": str(domain.name), "survives_power_loss": domain.survives_power_loss}
    verdict = Verdict.FINE if domain.survives_power_loss else Verdict.BETTER
    mend = "" if domain.survives_power_loss else "--data on a disk, if the data must survive a power loss"
    return Fact("durability", verdict, f"{domain.name}: {domain.note}", _DURABILITY, mend, figures)


def _commit(domain: Domain) -> Fact:
    try:
        kind = choose_commit("auto", domain).name.lower()
    except GpkvsError as error:
        return Fact("commit", Verdict.WRONG, str(error), _COMMIT, "unset GPKVS_COMMIT, or set it to auto")
    return Fact("commit", Verdict.FINE, f"a new store would have: {kind}", _COMMIT, figures={"commit": kind})
