"""An online store for Feast, on a gpkvs server: ``type: gpkvs_feast.GpkvsOnlineStore`` in feature_store.yaml.

All records lie in one table of the layout bytes, since a request goes to one table: so all feature views of a
`get_online_features` are one read. A record has all features of one entity in one view:

    key    project, 0, feature view, 0, Feast's serialized entity key
    value  msgpack: [event time, created time or nil, {feature: its Value of Feast, as protobuf}]

Times are microseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Literal

import msgpack
from feast import Entity, FeatureView, RepoConfig, utils
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import FeastConfigBaseModel
from pydantic import StrictInt, StrictStr

from gpkvs import ForkedError
from gpkvs.client import Client, TlsCredentials

Row = tuple[datetime | None, dict[str, Value] | None]
"""What Feast reads of an entity in a view: when it was so, and the features; twice None if it is not there."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class GpkvsOnlineStoreConfig(FeastConfigBaseModel):
    """What `online_store` in feature_store.yaml may have."""

    type: Literal["gpkvs_feast.GpkvsOnlineStore"] = "gpkvs_feast.GpkvsOnlineStore"

    target: StrictStr = "127.0.0.1:7171"
    """HOST:PORT of the server."""

    table: StrictStr = "feast"
    """The table of all records, which `feast apply` makes; several projects may share it."""

    ttl_seconds: StrictInt | None = None
    """When a record expires after it was written; none: it stays."""

    timeout_seconds: float | None = 10.0
    """How long a request may take, with all attempts."""

    tls: bool = False
    """Whether the server speaks TLS."""

    ca: StrictStr | None = None
    """File of the CAs of the server's certificate; none: those of the system."""

    token: StrictStr | None = None
    """For a server that asks who calls; ``${GPKVS_TOKEN}`` takes it from the environment."""


class GpkvsOnlineStore(OnlineStore):
    """Feast's features in a gpkvs server: written durably, in transactions of whole batches."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._opening = Lock()

    def online_write_batch(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[tuple[EntityKey, dict[str, Value], datetime, datetime | None]],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Write the features of entities, all or nothing if they fit one request; the last one of an entity counts."""
        settings = config.online_store
        prefix = _prefix(config, table)
        keys = [prefix + _entity_bytes(config, entity) for entity, *_ in data]
        values = [
            msgpack.packb(
                [
                    _microseconds(event),
                    None if created is None else _microseconds(created),
                    {name: value.SerializeToString() for name, value in features.items()},
                ]
            )
            for _, features, event, created in data
        ]
        self._connected(config).set_many(keys, values, ttl=settings.ttl_seconds, table=settings.table, atomic=False)
        if progress:
            progress(len(data))

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[Row]:
        """Read the features of entities in one view."""
        return self._read(config, [(table, entity_keys, requested_features)])[0]

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Make the table, and remove the records of views that are gone."""
        self._connected(config).create_table(config.online_store.table, exist_ok=True)
        self._remove(config, tables_to_delete)

    def teardown(self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]) -> None:
        """Remove the records of all views; the table stays, as other projects may have it."""
        self._remove(config, tables)
        with self._opening:
            if self._client:
                self._client.close()
            self._client = None

    def _read_features_per_fv(
        self,
        config: RepoConfig,
        grouped_refs: list[tuple[FeatureView, list[str]]],
        join_key_values: dict[str, Any],
        entity_name_to_join_key_map: dict[str, str],
        online_features_response: Any,
        full_feature_names: bool,
        include_feature_view_version_metadata: bool,
    ) -> None:
        """Read all views at once; Feast's own way asks for one after the other."""
        places, wanted = [], []
        for table, features in grouped_refs:
            values, *place = utils._get_unique_entities(table, join_key_values, entity_name_to_join_key_map)
            places.append(place)
            wanted.append((table, utils._get_entity_key_protos(values), features))
        for (table, _, features), (indexes, length), rows in zip(
            wanted, places, self._read(config, wanted), strict=True
        ):
            utils._populate_response_from_feature_data(
                features,
                rows,
                indexes,
                online_features_response,
                full_feature_names,
                table,
                length,
                include_feature_view_version_metadata,
            )

    def _read(
        self, config: RepoConfig, wanted: list[tuple[FeatureView, list[EntityKey], list[str] | None]]
    ) -> list[list[Row]]:
        """Return the rows of each view, by one request for all that fits into one."""
        keys = [
            prefix + _entity_bytes(config, entity)
            for table, entities, _ in wanted
            for prefix in (_prefix(config, table),)
            for entity in entities
        ]
        if not keys:
            return [[] for _ in wanted]
        values, _ = self._connected(config).get_many(keys, table=config.online_store.table, atomic=False)
        left = iter(values)
        return [[_row(next(left), features) for _ in entities] for _, entities, features in wanted]

    def _remove(self, config: RepoConfig, tables: Sequence[FeatureView]) -> None:
        client, name = self._connected(config), config.online_store.table
        for table in tables:
            for piece in client.scan_pieces(_prefix(config, table), keys_only=True, table=name):
                client.delete_many(piece.key_list(), table=name, atomic=False)

    def _connected(self, config: RepoConfig) -> Client:
        """Return the client of this process; one that was opened before a fork is the parent's."""
        settings = config.online_store
        with self._opening:
            try:
                if self._client:
                    self._client.table(settings.table)
            except ForkedError:
                self._client = None
            if self._client is None:
                self._client = Client(
                    settings.target,
                    timeout=settings.timeout_seconds,
                    credentials=TlsCredentials(ca=settings.ca) if settings.tls else None,
                    token=settings.token,
                )
            return self._client


def _prefix(config: RepoConfig, table: FeatureView) -> bytes:
    return f"{config.project}\0{table.name}\0".encode()


def _entity_bytes(config: RepoConfig, entity: EntityKey) -> bytes:
    return serialize_entity_key(entity, config.entity_key_serialization_version)


def _microseconds(moment: datetime) -> int:
    """Return a time of Feast as a number; without a zone it is UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _row(record: bytes | None, features: list[str] | None) -> Row:
    if record is None:
        return None, None
    event, _, held = msgpack.unpackb(record)
    names = held if features is None else [name for name in features if name in held]
    return _EPOCH + event * _MICROSECOND, {name: Value.FromString(held[name]) for name in names}
