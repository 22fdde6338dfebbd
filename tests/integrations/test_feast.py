"""The online store for Feast, with Feast itself and files as its source; these tests run where Feast is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpkvs.client import Client
from tests.serving import Server

HAS_FEAST = find_spec("feast") is not None
pytestmark = [pytest.mark.machine, pytest.mark.skipif(not HAS_FEAST, reason="Feast is not installed")]
PACKAGE = Path(__file__).parents[2] / "integrations" / "feast"
if HAS_FEAST:
    os.environ.setdefault("FEAST_USAGE", "False")
    sys.path.insert(0, str(PACKAGE))
    import pandas as pd
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
    from feast.types import Array, Float32, Float64, Int64, String

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
FEATURES = [
    *("trips:count", "trips:rating", "trips:town", "trips:vector"),
    *("shifts:hours", "rides:price"),
]
ENTITIES = [{"driver": driver, "rider": rider} for driver, rider in ((1, "a"), (2, "b"), (1, "b"), (9, "a"))]


def definitions(folder: Path) -> list[Any]:
    """Return two entities, three feature views, and their data in files: of a driver twice, the later one counts."""
    earlier = NOW - timedelta(hours=1)
    frames = {
        "trips": pd.DataFrame(
            {
                "driver": [1, 2, 1],
                "count": [10, 20, 11],
                "rating": [4.5, 3.25, 4.75],
                "town": ["Köln", "", "Bonn"],
                "vector": [[1.0, 2.0], [], [3.0]],
                "moment": [earlier, NOW, NOW],
            }
        ),
        "shifts": pd.DataFrame({"driver": [1, 2], "hours": [8.0, None], "moment": [NOW, NOW]}),
        "rides": pd.DataFrame({"driver": [1, 2], "rider": ["a", "b"], "price": [1.5, 2.5], "moment": [NOW, NOW]}),
    }
    sources = {}
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet")
        sources[name] = FileSource(path=str(folder / f"{name}.parquet"), timestamp_field="moment")
    driver = Entity(name="driver", value_type=ValueType.INT64)
    rider = Entity(name="rider", value_type=ValueType.STRING)
    fields = {
        "trips": {"count": Int64, "rating": Float64, "town": String, "vector": Array(Float32)},
        "shifts": {"hours": Float64},
        "rides": {"price": Float32},
    }
    views = [
        FeatureView(
            name=name,
            entities=[driver, rider] if name == "rides" else [driver],
            schema=[Field(name=field, dtype=kind) for field, kind in fields[name].items()],
            source=sources[name],
            ttl=timedelta(days=10_000),
        )
        for name in frames
    ]
    return [driver, rider, *views]


def feature_store(folder: Path, online_store: dict[str, Any], project: str = "rides") -> FeatureStore:
    folder.mkdir(exist_ok=True)
    config = RepoConfig(
        project=project,
        provider="local",
        registry=str(folder / "registry.db"),
        online_store=online_store,
        entity_key_serialization_version=3,
    )
    return FeatureStore(config=config)


def materialized(store: FeatureStore, folder: Path) -> FeatureStore:
    store.apply(definitions(folder))
    store.materialize(NOW - timedelta(days=1), NOW + timedelta(days=1))
    return store


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.target, table="feast") as opened:
        yield opened


@pytest.fixture
def online(server: Server) -> dict[str, Any]:
    return {"type": "gpkvs_feast.GpkvsOnlineStore", "target": server.target}


@pytest.fixture
def store(online: dict[str, Any], tmp_path: Path) -> FeatureStore:
    return materialized(feature_store(tmp_path / "feast", online), tmp_path)


def answer(store: FeatureStore, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = store.get_online_features(FEATURES, ENTITIES, **options).to_dict()
    return found


def test_the_features_are_those_of_feasts_own_store(store: FeatureStore, tmp_path: Path) -> None:
    peer = feature_store(tmp_path / "peer", {"type": "sqlite", "path": str(tmp_path / "peer.db")})
    materialized(peer, tmp_path)
    found = answer(store)
    assert found["count"] == [11, 20, 11, None]
    assert found["town"] == ["Bonn", "", "Bonn", None]
    assert found["price"] == [1.5, 2.5, None, None]
    for options in ({}, {"full_feature_names": True}):
        assert answer(store, **options) == answer(peer, **options)
    ours, theirs = (each.get_online_features(FEATURES, ENTITIES).proto for each in (store, peer))
    assert ours.metadata == theirs.metadata
    assert [list(one.statuses) for one in ours.results] == [list(one.statuses) for one in theirs.results]
    assert [[t.seconds for t in one.event_timestamps] for one in ours.results] == [
        [t.seconds for t in one.event_timestamps] for one in theirs.results
    ]


def test_all_views_are_one_read(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    real = Client._execute_columns
    monkeypatch.setattr(Client, "_execute_columns", lambda self, *args: (requests.append(args), real(self, *args))[1])
    answer(store)
    assert len(requests) == 1
    assert len(requests[0][0]) == 3 + 3 + 4  # drivers 1, 2 and 9 in two views, and four pairs


def test_what_is_pushed_is_read(store: FeatureStore, client: Client) -> None:
    later = NOW + timedelta(hours=1)
    frame = pd.DataFrame({"driver": [2, 9, 9], "hours": [1.0, 2.0, 3.0], "moment": [later, later, later]})
    store.write_to_online_store("shifts", frame)
    assert answer(store)["hours"] == [8.0, 1.0, 8.0, 3.0]
    assert client.count() == 2 + 3 + 2


def test_views_that_are_gone_leave_nothing_behind(store: FeatureStore, client: Client, tmp_path: Path) -> None:
    other = materialized(feature_store(tmp_path / "other", store.config.online_store.model_dump(), "other"), tmp_path)
    assert client.count() == 12
    gone = [view for view in definitions(tmp_path) if view.name == "trips"]
    store.apply([], objects_to_delete=gone, partial=False)
    assert client.count() == 10
    assert client.count(b"rides\0trips\0") == 0
    store.teardown()
    assert client.count() == 6
    assert answer(other)["count"] == [11, 20, 11, None]


def test_records_may_expire(online: dict[str, Any], client: Client, tmp_path: Path) -> None:
    store = materialized(feature_store(tmp_path / "feast", {**online, "ttl_seconds": 1000}), tmp_path)
    keys = [key for key, _ in client.scan()]
    assert len(keys) == 6
    assert all(990 < (client.ttl(key) or 0) <= 1000 for key in keys)
    assert answer(store)["count"] == [11, 20, 11, None]


def test_settings_that_are_none_are_refused(online: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Exception, match="port"):
        feature_store(tmp_path / "feast", {**online, "port": 7171}).config.online_store  # noqa: B018


def test_a_child_has_a_connection_of_its_own(store: FeatureStore) -> None:
    """As the workers of a server have that fork after the first request."""
    expected = answer(store)
    child = os.fork()
    if child == 0:
        os._exit(0 if answer(store) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert answer(store) == expected
