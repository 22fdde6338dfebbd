"""All mutants, by name."""

from __future__ import annotations

from tests.mutants import (
    access,
    audit,
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
    operations,
    redis_guards,
    scan,
    server,
    storage,
    users,
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
    *expiry.MUTANTS,
    *formats.MUTANTS,
    *operations.MUTANTS,
    *exports.MUTANTS,
    *faces.MUTANTS,
    *users.MUTANTS,
    *audit.MUTANTS,
    *door.MUTANTS,
    *redis_guards.MUTANTS,
)

MUTANTS = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two mutants have one name"
