"""YCSB's properties: their names, defaults and meaning here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Final, Self, get_type_hints

from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import ttl_ms
from gpkvs.text import quoted

WORKLOADS: Final = ("a", "b", "c", "d", "f")
DISTRIBUTIONS: Final = ("uniform", "zipfian", "latest")

# Properties of YCSB that say nothing to this program, but stand in everybody's files.
_WITHOUT_EFFECT: Final = frozenset({"workload", "db", "exporter", "exportfile", "operation.timeout"})


@dataclass(frozen=True)
class Properties:
    """What a run shall do. Each name is YCSB's, with "_" for "."; each default is that of its code, except `table`.

    `table` is by default the server's default table (YCSB: usertable). Four are not YCSB's: `seed` repeats a run's
    choices (0: random), `batch` is the number of operations in a message, `ttl` is how long a record stays after each
    write (0: for ever), and `maxunavailabletime` is how long a run goes on without any response (0: for ever).
    """

    recordcount: int = 0
    operationcount: int = 0
    insertstart: int = 0
    insertcount: int = 0  # 0: recordcount - insertstart
    table: str = ""
    fieldcount: int = 10
    fieldlength: int = 100
    fieldnameprefix: str = "field"
    fieldlengthdistribution: str = "constant"
    readallfields: bool = True
    writeallfields: bool = False
    readproportion: float = 0.95
    updateproportion: float = 0.05
    insertproportion: float = 0.0
    scanproportion: float = 0.0
    readmodifywriteproportion: float = 0.0
    requestdistribution: str = "uniform"
    insertorder: str = "hashed"
    zeropadding: int = 1
    dataintegrity: bool = False
    core_workload_insertion_retry_limit: int = 0
    core_workload_insertion_retry_interval: int = 3  # seconds
    threadcount: int = 1
    batch: int = 1  # operations in a message
    ttl: float = 0.0  # seconds until a record expires; 0: never
    target: float = 0.0  # operations per second; 0: as fast as it goes
    maxexecutiontime: int = 0  # seconds; 0: until all operations are done
    maxunavailabletime: float = 60.0  # seconds without any response, after which it gives up; 0: never
    measurementtype: str = "hdrhistogram"
    measurement_interval: str = "op"
    hdrhistogram_percentiles: str = "50,95,99"
    status_interval: int = 10  # seconds
    seed: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Return typed properties, and the names that are not known.

        Raises
        ------
        InvalidArgumentError
            If a value is not what its property takes.
        """
        names = {_ycsb_name(field.name): field.name for field in fields(cls)}
        types = get_type_hints(cls)
        values: dict[str, object] = {}
        unknown = []
        for name, text in given.items():
            if name in names:
                values[names[name]] = _value(name, types[names[name]], text.strip())
            elif name not in _WITHOUT_EFFECT:
                unknown.append(name)
        properties = cls(**values)  # type: ignore[arg-type]  # each was made by its own type
        properties._check()
        return properties, unknown

    @property
    def records_to_insert(self) -> int:
        """How many records a load inserts."""
        return self.insertcount or self.recordcount - self.insertstart

    @property
    def percentiles(self) -> list[float]:
        """The percentiles to report."""
        return [float(text) for text in self.hdrhistogram_percentiles.split(",") if text.strip()]

    def _check(self) -> None:
        """Refuse properties that make no sense or are not offered, before anything is sent."""
        _choice("requestdistribution", self.requestdistribution, DISTRIBUTIONS)
        _choice("insertorder", self.insertorder, ("hashed", "ordered"))
        _choice("fieldlengthdistribution", self.fieldlengthdistribution, ("constant",))
        _choice("measurementtype", self.measurementtype, ("hdrhistogram",))
        _choice("measurement.interval", self.measurement_interval, ("op", "intended", "both"))
        if self.scanproportion:
            raise InvalidArgumentError(
                "a scan of gpkvs cannot begin at a key, because its index is a hash table and keeps no order of keys: "
                "set it to 0, workload e cannot run here",
                field="scanproportion",
            )
        ttl_ms(self.ttl or None)  # a wrong one is refused here, before anything is sent
        for name in ("fieldcount", "threadcount", "batch", "status_interval"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{getattr(self, name)}, it must be at least 1", field=_ycsb_name(name))
        if self.batch > 1 and self.core_workload_insertion_retry_limit:
            raise InvalidArgumentError(
                "a message of many operations is not tried again: set it to 0, or batch to 1",
                field="core_workload_insertion_retry_limit",
            )
        if self.recordcount < 1 or self.records_to_insert < 1:
            raise InvalidArgumentError(
                f"{self.recordcount}, it must be at least 1 more than insertstart: say how many records the store "
                "holds with -p recordcount=N",
                field="recordcount",
            )
        try:
            if not all(0 < percentile <= 100 for percentile in self.percentiles):
                raise ValueError
        except ValueError:
            raise InvalidArgumentError(
                f"{quoted(self.hdrhistogram_percentiles)}, give numbers over 0 up to 100, such as 50,95,99",
                field="hdrhistogram.percentiles",
            ) from None


def _ycsb_name(name: str) -> str:
    """Return a field's name as YCSB writes it."""
    group, dot, rest = name.partition("_")
    return f"{group}.{rest}" if dot and group in ("measurement", "hdrhistogram", "status") else name


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgumentError(f"{quoted(value)} is not offered, choose {' or '.join(choices)}", field=name)


def _value(name: str, kind: type, text: str) -> object:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"{quoted(text)}, give true or false", field=name)
        return text.lower() == "true"
    try:
        value = kind(text)
    except ValueError:
        raise InvalidArgumentError(f"{quoted(text)} is no number", field=name) from None
    if kind is not str and not value >= 0:
        raise InvalidArgumentError(f"{quoted(text)}, it must not be negative", field=name)
    return value


def parse_lines(lines: Iterable[str]) -> dict[str, str]:
    """Return the properties of a file: ``name=value`` or ``name: value`` in each line, comments after # or !."""
    properties = {}
    for line in lines:
        text = line.strip()
        if text and text[0] not in "#!":
            end = min((text.find(mark) for mark in "=:" if mark in text), default=len(text))
            properties[text[:end].strip()] = text[end + 1 :].strip()
    return properties


def read_workload(name: str) -> dict[str, str]:
    """Return the properties of a shipped workload.

    Raises
    ------
    InvalidArgumentError
        If it is e.
    """
    if name == "e":
        raise InvalidArgumentError(
            "e is 95 % scans of the records behind a key, and gpkvs keeps no order of keys (its index is a hash table)",
            field="workload",
        )
    text = (resources.files("gpkvs.client.ycsb") / "workloads" / f"workload{name}").read_text("utf-8")
    return parse_lines(text.splitlines())


def read_file(path: Path) -> dict[str, str]:
    """Return the properties of a file.

    Raises
    ------
    InvalidArgumentError
        If it cannot be read.
    """
    try:
        return parse_lines(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"cannot read {path}: {error}", field="-P") from error
