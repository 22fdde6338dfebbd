"""Settings that are given and have no effect: an existing store keeps those of its creation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from gpkvs.config import StoreConfig
from gpkvs.media.catalog import Catalog
from gpkvs.media.directory import checked_sizes
from gpkvs.media.layout import Root

_log = logging.getLogger("gpkvs")


class IgnoredSetting(NamedTuple):
    """A setting that a store does not follow.

    Attributes
    ----------
    name
        That of the option, as a settings file has it.
    text
        Why, and what to do.
    level
        How it is logged.
    """

    name: str
    text: str
    level: int = logging.WARNING

    def log(self) -> None:
        """Say it in the log."""
        _log.log(self.level, "%s", self.text, extra={"event": "setting_ignored"})


def ignored_settings(root: Root, catalog: Catalog, config: StoreConfig) -> Iterator[IgnoredSetting]:
    """Return what was given and has no effect on a store.

    Raises
    ------
    InvalidArgumentError
        If a size is out of range.
    """
    wanted = checked_sizes(config.sizes)
    commit, of_commit, of_other = "undo", "log_bytes", "journal_bytes"
    if root.has_journal:
        commit, of_commit, of_other = "journal", "journal_bytes", "log_bytes"
    if config.commit not in ("auto", commit):
        yield IgnoredSetting(
            "commit",
            f"commit={config.commit} has no effect: the store was created with {commit} and keeps it; gpkvs copy OLD "
            f"NEW --commit {config.commit} makes the other one",
        )
    if config.store_format != "auto" and config.store_format != str(root.store_format):
        yield IgnoredSetting(
            "format",
            f"format={config.store_format} has no effect: the store was created with format {root.format_text} and "
            f"keeps it; gpkvs copy OLD NEW --format {config.store_format} makes the other one",
        )
    for name in (of_other, f"{of_other}_max"):
        if getattr(config, name) is not None:
            text = f"{name} has no effect: the store commits by {commit}, whose size is {of_commit}"
            yield IgnoredSetting(name, text, logging.INFO)
    # What may grow may have had a smaller size that is asked for; a heap of which only the first size is given may not.
    own, most = root.heap_bytes_own, max(root.heap_bytes_own, root.heap_bytes_max)
    is_heap_alone = config.heap_bytes_max is None
    for name, size, may_have_grown, shown in (
        ("index_bytes", catalog.default_index_bytes, True, ""),
        ("heap_bytes", most if is_heap_alone else own, not is_heap_alone, f"{own} and may grow to {most}"),
        ("log_bytes", root.log_bytes, config.log_bytes_max is not None, ""),
        ("journal_bytes", root.journal_bytes, False, ""),
    ):
        asked = getattr(wanted, name)
        is_given = getattr(config, name) is not None and name != of_other
        if is_given and (asked > size or (asked < size and not may_have_grown)):
            also = (
                "" if name in ("index_bytes", "journal_bytes") else f", and {name}_max changes how large it may become"
            )
            yield IgnoredSetting(
                name,
                f"{name}={asked} has no effect: it counts when a store is created, and this one has {shown or size}; "
                f"gpkvs copy OLD NEW --{name.replace('_', '-')} {asked} makes a store of this size{also}",
            )


def ignored_heap_bytes_max(root: Root, config: StoreConfig) -> IgnoredSetting | None:
    """Return the largest size of the heap, if the heap is larger already."""
    asked = config.heap_bytes_max
    if asked is None or asked >= root.heap_bytes_own:
        return None
    return IgnoredSetting(
        "heap_bytes_max",
        f"heap_bytes_max={asked}: the heap has {root.heap_bytes_own} bytes, and its file does not become shorter; "
        "gpkvs copy OLD NEW --heap-bytes-max SIZE makes a smaller one",
    )
