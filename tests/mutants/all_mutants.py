"""All mutants, by name."""

from __future__ import annotations

from tests.mutants import (
    access,
    archive,
    audit,
    backup,
    changes,
    client,
    compaction,
    door,
    expiry,
    exports,
    faces,
    formats,
    gpm,
    gpu,
    growth,
    kernels,
    noted,
    operations,
    redis_guards,
    rows,
    scan,
    server,
    storage,
    subscribers,
    users,
    watches,
)
from tests.mutants.mutant import Mutant

_ALL: tuple[Mutant, ...] = (
    *access.MUTANTS,
    *server.MUTANTS,
    *client.MUTANTS,
    *storage.MUTANTS,
    *gpm.MUTANTS,
    *gpu.MUTANTS,
    *growth.MUTANTS,
    *kernels.MUTANTS,
    *compaction.MUTANTS,
    *scan.MUTANTS,
    *changes.MUTANTS,
    *backup.MUTANTS,
    *archive.MUTANTS,
    *noted.MUTANTS,
    *expiry.MUTANTS,
    *formats.MUTANTS,
    *operations.MUTANTS,
    *exports.MUTANTS,
    *faces.MUTANTS,
    *users.MUTANTS,
    *watches.MUTANTS,
    *audit.MUTANTS,
    *door.MUTANTS,
    *redis_guards.MUTANTS,
    *rows.MUTANTS,
    *subscribers.MUTANTS,
)

MUTANTS = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two mutants have one name"
