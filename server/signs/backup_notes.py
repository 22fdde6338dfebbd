"""What clients say of the backups and archives that they make of this server: the last of each, and no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpkvs.changes import Position
from gpkvs.proto.v1 import admin_pb2

_RESULTS = {admin_pb2.BACKUP_WHOLE: "whole", admin_pb2.BACKUP_FAILED: "failed"}


class BackupNotes(Collector):
    """Takes notes in one thread, and gives them to any.

    Times are by this machine's clock, whatever clock a client has.

    Parameters
    ----------
    now_ms
        The time, in milliseconds since 1970.

    Attributes
    ----------
    last_backup, last_archive
        As `Info` has them; None: nobody has told of any.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._ended = dict.fromkeys(_RESULTS.values(), 0)
        self.last_backup: admin_pb2.LastBackup | None = None
        self.last_archive: admin_pb2.LastArchive | None = None

    def backup(self, message: admin_pb2.NoteBackupRequest) -> None:
        """Note how far a backup is."""
        if result := _RESULTS.get(message.state):
            self._ended[result] += 1
        if message.state != admin_pb2.BACKUP_WHOLE:
            return
        time_ms = max(self._now_ms() - message.age_ms, 0)
        if self.last_backup is None or time_ms >= self.last_backup.time_ms:  # one that took long may end later
            self.last_backup = admin_pb2.LastBackup(
                time_ms=time_ms, keys=message.keys, bytes=message.bytes, seconds=message.seconds
            )

    def archive(self, position: Position, time_ms: int, newest: Position) -> None:
        """Note how far an archive is.

        Parameters
        ----------
        position
            All up to there is in it.
        time_ms
            Of the last entry up to there, by the server's clock; 0: it is not known.
        newest
            Behind all that was executed by now.

        Raises
        ------
        ChangesLostError
            If the position is of another opening of the store.
        """
        now_ms = self._now_ms()
        synced_ms = now_ms if position.reaches(newest) else min(time_ms, now_ms)
        if synced_ms and (self.last_archive is None or synced_ms > self.last_archive.synced_ms):
            self.last_archive = admin_pb2.LastArchive(synced_ms=synced_ms)

    def collect(self) -> Iterator[Metric]:
        """Return what is known."""
        ended = CounterMetricFamily(
            "gpkvs_backups", "Backups that ended, as the clients say that make them, by result", labels=["result"]
        )
        for result, count in self._ended.items():
            ended.add_metric([result], count)
        yield ended
        if (backup := self.last_backup) is not None:
            for name, text, value in (
                (
                    "timestamp_seconds",
                    "The last whole backup has all that was executed up to then",
                    backup.time_ms / 1000,
                ),
                ("seconds", "Time that it took, with its check", backup.seconds),
                ("bytes", "Bytes of the disk that it has", backup.bytes),
            ):
                yield GaugeMetricFamily(f"gpkvs_backup_last_{name}", text, value=value)
        if (archive := self.last_archive) is not None:
            yield GaugeMetricFamily(
                "gpkvs_archive_synced_timestamp_seconds",
                "An archive has all that was executed up to then, durably, and a base before it",
                value=archive.synced_ms / 1000,
            )
