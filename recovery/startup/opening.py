"""Opening a store's directory: locked, created where there is none, mapped, and recovered."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gpkvs.backends.base import Backend
from gpkvs.backends.choose import choose_backend
from gpkvs.config import StoreConfig
from gpkvs.engine.schema import remove_orphans, reserve_catalog
from gpkvs.media.directory import (
    DirectoryLock,
    Progress,
    access_errors,
    create_store,
    finish_creation,
    make_directory,
    require_store,
    store_exists,
)
from gpkvs.media.files import StoreFiles, open_files, warn_of_sizes
from gpkvs.pm.domain import Domain, find_domain
from gpkvs.recovery.startup.recover import Recovered, recover


@dataclass(frozen=True)
class OpenedDirectory:
    """What an open store holds, and gives back when it is closed."""

    lock: DirectoryLock
    backend: Backend
    domain: Domain
    is_new: bool
    files: StoreFiles
    recovered: Recovered

    def close(self) -> None:
        """Give all of it back."""
        self.backend.close()  # before the files are unmapped: a GPU must let go of them
        self.files.close()
        self.lock.release()


def open_directory(path: Path, config: StoreConfig, *, create: bool, on_progress: Progress) -> OpenedDirectory:
    """Open the directory of a store; a failure gives everything back.

    Parameters
    ----------
    path
        Its directory.
    config
        How to open it.
    create
        Whether to create a store where there is none.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.

    Raises
    ------
    GpkvsError
        As `gpkvs.open` says.
    """
    with access_errors(path), ExitStack() as undo:
        if not create:
            require_store(path)
        make_directory(path)
        lock = DirectoryLock(path, write=True)
        undo.callback(lock.release)
        backend = choose_backend(config.backend, config.threads)
        undo.callback(backend.close)
        domain = find_domain(path, config.durability)
        is_new = not store_exists(path)
        if is_new:
            create_store(path, config.sizes, on_progress)
        finish_creation(path)
        files = open_files(path, domain)
        undo.callback(files.close)
        undo.callback(backend.close)  # first: a GPU must let go of the files
        warn_of_sizes(files, config)
        _attach(backend, files)
        recovered = recover(files, backend, on_progress, accept_loss=config.accept_loss)
        remove_orphans(files)
        reserve_catalog(files)
        undo.pop_all()
        return OpenedDirectory(lock, backend, domain, is_new, files, recovered)


def _attach(backend: Backend, files: StoreFiles) -> None:
    """Make the files that kernels store to reachable for the backend; records stay with the host."""
    backend.attach(files.log)
    for index in files.indexes.values():
        backend.attach_index(index)
