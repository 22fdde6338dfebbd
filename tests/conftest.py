"""Fixtures for all tests: a small store, and `gpkvs check` on whatever a test leaves behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import gpkvs
from gpkvs.backends.choose import PAIR, SHARDS, VARIABLE
from gpkvs.backends.cpu.backend import HOST_OPS_MAX
from gpkvs.engine.space.recount import recount
from gpkvs.engine.state.heap import SegmentCounts
from gpkvs.errors import StoreMissingError
from gpkvs.recovery.startup.check import check
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE, FORMAT_VARIABLE

# No test is timed: on a busy machine one example, or to think of it, may take seconds.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        choices=["cpu", "cpu-phases", PAIR, SHARDS, "cuda", "cuda-auto"],
        default="cpu",
        help="what runs the kernels; cpu-phases: small batches phase by phase too; cpu-pair, cpu-shards: "
        "as on one GPU, on several, by threads; cuda: all kernels on the GPU, cuda-auto: small batches on the host",
    )
    parser.addoption(
        "--commit",
        choices=["auto", "undo", "journal"],
        default="auto",
        help="how the batches of new stores become durable",
    )
    parser.addoption("--format", choices=["auto", "3", "4"], default="auto", help="format of the files of new stores")
    parser.addoption(
        "--no-skips",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="a test that is skipped fails, unless it is marked gpu or machine; the default where CI=true",
    )
    parser.addoption("--docs-all", action="store_true", help="run the slow blocks of the documents too")


def pytest_configure(config: pytest.Config) -> None:
    # Processes that tests start inherit it.
    choice = config.getoption("--backend")
    os.environ[VARIABLE] = choice if choice in (PAIR, SHARDS) else choice.partition("-")[0]
    os.environ[COMMIT_VARIABLE] = config.getoption("--commit")
    os.environ[FORMAT_VARIABLE] = config.getoption("--format")
    os.environ[HOST_OPS_MAX] = "0" if choice in ("cpu-phases", "cuda") else ""
    os.environ.pop("PYTHONUNBUFFERED", None)  # users have none; with it, lines come early


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--backend").startswith("cuda"):
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU: run with --backend cuda on a machine that has one")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


# A tool that is not installed would otherwise turn a test off, and nobody would notice.
def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport, node: pytest.Item | pytest.Collector) -> None:
    """Make a skipped test a failed one where tests may not be skipped."""
    may_be_skipped = any(node.get_closest_marker(name) for name in ("gpu", "machine")) or hasattr(report, "wasxfail")
    if report.skipped and not may_be_skipped and node.config.getoption("--no-skips"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"{reason}; --no-skips (CI=true) makes it a failure"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped(report, item)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(report, collector)
    return report


pytest_plugins = ["tests.serving"]

SMALL = {"index_bytes": 1 << 20, "heap_bytes": 16 << 20, "log_bytes": 4 << 20, "journal_bytes": 8 << 20}


def assert_clean(path: Path) -> None:
    """Fail unless every invariant of the store holds."""
    report = check(path)
    assert report.is_clean, report


def assert_counted(store: gpkvs.Store) -> None:
    """Fail unless what a store has counted of each table, batch by batch, is what an opening would count."""
    with store._mutex, store._turn_over():
        for table in store._engine.tables.values():
            counts = SegmentCounts.of(store._files.segments)
            assert recount(store._files, store._backend, table.index, counts) == table.held, table.entry.name


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture what gpkvs logs, and nothing else: asyncio may tell now of the futures of an earlier test."""
    of_gpkvs = logging.Filter("gpkvs")
    caplog.handler.addFilter(of_gpkvs)
    yield caplog
    caplog.handler.removeFilter(of_gpkvs)


@pytest.fixture(autouse=True)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give tests of the undo log, and of format 3, stores that have it, whatever the others get."""
    if request.node.get_closest_marker("undo"):
        monkeypatch.setenv(COMMIT_VARIABLE, "undo")
    if request.node.get_closest_marker("format3"):
        monkeypatch.setenv(FORMAT_VARIABLE, "3")


@pytest.fixture(autouse=True)
def _priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the priority of this process as it is: commands lower it that run here, and all later tests would wait."""
    monkeypatch.setattr(os, "setpriority", lambda *_: None)


@pytest.fixture
def natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the native planner plan on stores of the backend ``cpu``, as users have it, whatever --backend says."""
    monkeypatch.setenv(HOST_OPS_MAX, "")
    monkeypatch.delenv("GPKVS_GPUS", raising=False)


@pytest.fixture
def by_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads stand for a GPU: stores that are opened from here on plan batches phase by phase."""
    monkeypatch.setenv(HOST_OPS_MAX, "0")


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    """Return a directory for a store that must be clean when the test ends."""
    path = tmp_path / "store"
    yield path
    try:
        assert_clean(path)
    except StoreMissingError:
        pytest.fail("the test left no store in store_path")


@pytest.fixture
def store(store_path: Path) -> Iterator[gpkvs.Store]:
    """Return a small open store that must be clean when the test ends."""
    with gpkvs.open(store_path, **SMALL) as opened:
        yield opened
        if not opened._closed:
            assert_counted(opened)
