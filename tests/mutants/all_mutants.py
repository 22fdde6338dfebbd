"""All mutants, by name."""

from __future__ import annotations

from tests.mutants.copies import archive, backup, exports, noted
from tests.mutants.engine import changes, compaction, expiry, formats, gpu, growth, kernels, operations, scan, storage
from tests.mutants.mutant import Mutant
from tests.mutants.python import client, faces, gpm, rows
from tests.mutants.server import access, audit, door, redis_guards, server, subscribers, users, watches

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
