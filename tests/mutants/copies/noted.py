"""Mistakes in what servers know of backups and archives: an alert that does not come, or comes for nothing."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ARCHIVE, _BACKUP, _SERVER = "archive/test_notes.py::", "backup/test_notes.py::", "server/signs/test_backup_notes.py::"

MUTANTS = (
    Mutant(
        "notes-of-an-archive-without-a-base",
        "gpkvs/archive/archiver.py",
        "return synced if begin is not None and begin == self._begin else None",
        "return synced if begin is not None else None",
        "an archive of which nothing can be restored looks whole",
        (
            f"{_ARCHIVE}test_without_a_base_no_moment_can_be_restored",
            f"{_ARCHIVE}test_behind_lost_changes_it_begins_anew",
        ),
    ),
    Mutant(
        "notes-of-what-is-not-durable",
        "gpkvs/archive/recorder.py",
        '                    failpoint.hit("mid_archive")\n',
        '                    failpoint.hit("mid_archive")\n'
        "                    self.synced = Synced(self._writer.end, entries[-1].time_ms)\n",
        "what a power failure may take counts as archived",
        (f"{_ARCHIVE}test_what_is_not_durable_does_not_count",),
    ),
    Mutant(
        "archive-goes-on-behind-what-is-not-durable",
        "gpkvs/archive/recorder.py",
        "sync_path(runs[-1].segments[-1].path)",
        "pass",
        "a power failure takes what a killed archiver wrote, and the archive has a hole",
        (f"{_ARCHIVE}test_what_a_killed_archiver_wrote_is_made_durable",),
    ),
    Mutant(
        "notes-of-any-position",
        "server/signs/backup_notes.py",
        "now_ms if position.reaches(newest) else min(time_ms, now_ms)",
        "now_ms",
        "an archive that is behind looks as new as the server",
        (f"{_SERVER}test_how_far_an_archive_is",),
    ),
    Mutant(
        "notes-of-the-backup-that-ended-last",
        "server/signs/backup_notes.py",
        "if self.last_backup is None or time_ms >= self.last_backup.time_ms:",
        "if True:",
        "a backup that took long hides a newer one",
        (f"{_SERVER}test_the_last_backup_is_the_one_of_the_latest_moment",),
    ),
    Mutant(
        "notes-before-a-backup-is-whole",
        "gpkvs/backup/copier.py",
        "            source.notes.backup(BackupNote(BackupState.BEGUN, 0.0))\n",
        "            source.notes.backup(BackupNote(BackupState.BEGUN, 0.0))\n"
        "            source.notes.backup(BackupNote(BackupState.WHOLE, 0.0))\n",
        "a backup that fails counts as one",
        (f"{_BACKUP}test_a_backup_that_fails",),
    ),
    Mutant(
        "notes-are-the-backup",
        "gpkvs/cli/data/server_notes.py",
        "        except grpc.RpcError as error:\n            return error\n",
        "        except grpc.RpcError as error:\n            raise SystemExit(1) from error\n",
        "a new gpkvs cannot back up an older server",
        (f"{_BACKUP}test_a_server_that_is_older",),
    ),
)
