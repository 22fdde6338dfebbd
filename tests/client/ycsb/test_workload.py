"""Properties as YCSB reads them, and the records and operations they make."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from gpkvs.client.ycsb.properties import WORKLOADS, Properties, parse_lines, read_file, read_workload
from gpkvs.client.ycsb.workload import CoreWorkload, Operation, pack, unpack
from gpkvs.errors import InvalidArgumentError

SEED = 11


def make(**given: str) -> CoreWorkload:
    properties, unknown = Properties.parse({"recordcount": "1000", "operationcount": "5000", **given})
    assert unknown == []
    return CoreWorkload(properties, SEED)


def test_defaults_are_those_of_ycsb() -> None:
    properties, _ = Properties.parse({"recordcount": "5"})
    assert properties.fieldcount * properties.fieldlength == 1000
    assert (properties.readproportion, properties.updateproportion) == (0.95, 0.05)
    assert properties.requestdistribution == "uniform"
    assert properties.readallfields
    assert not properties.writeallfields
    assert properties.percentiles == [50, 95, 99]
    assert properties.records_to_insert == 5


def test_names_are_those_of_ycsb_dots_included() -> None:
    given = {
        "recordcount": "10",
        "insertstart": "4",
        "measurement.interval": "both",
        "status.interval": "1",
        "hdrhistogram.percentiles": "50, 99.9",
        "core_workload_insertion_retry_limit": "3",
        "writeallfields": "TRUE",
        "workload": "site.ycsb.workloads.CoreWorkload",
    }
    properties, unknown = Properties.parse(given)
    assert unknown == []
    assert properties.measurement_interval == "both"
    assert properties.percentiles == [50, 99.9]
    assert properties.core_workload_insertion_retry_limit == 3
    assert properties.writeallfields
    assert properties.records_to_insert == 6


def test_unknown_properties_are_told() -> None:
    assert Properties.parse({"recordcount": "1", "redis.host": "x", "recordcuont": "1"})[1] == [
        "redis.host",
        "recordcuont",
    ]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("recordcount", "many", "no number"),
        ("recordcount", "0", "-p recordcount=N"),
        ("recordcount", "-1", "negative"),
        ("readproportion", "nan", "negative"),
        ("insertstart", "1", "insertstart"),
        ("dataintegrity", "yes", "true or false"),
        ("requestdistribution", "hotspot", "uniform or zipfian or latest"),
        ("scanproportion", "0.1", "no order of keys"),
        ("hdrhistogram.percentiles", "50,x", "50,95,99"),
        ("hdrhistogram.percentiles", "101", "50,95,99"),
        ("measurement.interval", "always", "op or intended or both"),
        ("threadcount", "0", "at least 1"),
        ("ttl", "1e20", "at most"),
        ("maxunavailabletime", "-1", "negative"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as error:
        Properties.parse({"recordcount": "1", name: value})
    if name != "insertstart":
        assert error.value.field == name


def test_files_are_read_as_java_properties(tmp_path: Path) -> None:
    path = tmp_path / "workload"
    path.write_text("# comment\n! another\n\nrecordcount = 7\nworkload:a=b\n  table=\nlonely\n", "utf-8")
    assert read_file(path) == {"recordcount": "7", "workload": "a=b", "table": "", "lonely": ""}
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        read_file(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "distribution", "shares"),
    [
        ("a", "zipfian", {Operation.READ: 0.5, Operation.UPDATE: 0.5}),
        ("b", "zipfian", {Operation.READ: 0.95, Operation.UPDATE: 0.05}),
        ("c", "zipfian", {Operation.READ: 1.0}),
        ("d", "latest", {Operation.READ: 0.95, Operation.INSERT: 0.05}),
        ("f", "zipfian", {Operation.READ: 0.5, Operation.READ_MODIFY_WRITE: 0.5}),
    ],
)
def test_the_shipped_workloads_do_what_theirs_do(name: str, distribution: str, shares: dict[Operation, float]) -> None:
    assert name in WORKLOADS
    given = read_workload(name)
    known = {field.name for field in fields(Properties)}
    assert set(given) <= known
    properties, _ = Properties.parse({**given, "operationcount": "20000"})
    assert properties.requestdistribution == distribution
    done = Counter(operation for operation, _, _ in CoreWorkload(properties, SEED).transactions())
    assert {operation: count / 20000 for operation, count in done.items()} == pytest.approx(shares, abs=0.02)


def test_workload_e_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no order of keys"):
        read_workload("e")


def test_batches_are_not_repeated() -> None:
    with pytest.raises(InvalidArgumentError, match="not tried again"):
        make(batch="2", core_workload_insertion_retry_limit="1")


def test_comments_and_blank_lines_are_no_properties() -> None:
    assert parse_lines(["", "  ", "#a=1", "!b=2"]) == {}


def test_a_load_inserts_each_record_once() -> None:
    steps = list(make(recordcount="2500", insertstart="100").loads())
    assert [number for _, number, _ in steps] == list(range(100, 2500))
    assert {operation for operation, _, _ in steps} == {Operation.INSERT}
    assert len({key for _, _, key in steps}) == 2400


def test_keys_are_those_of_ycsb() -> None:
    hashed = [key for _, _, key in make(recordcount="2").loads()]
    assert hashed == [b"user6284781860667377211", b"user8517097267634966620"]
    ordered = [key for _, _, key in make(recordcount="2", insertorder="ordered", zeropadding="5").loads()]
    assert ordered == [b"user00000", b"user00001"]


@pytest.mark.parametrize("distribution", ["uniform", "zipfian", "latest"])
def test_a_run_asks_only_for_records_that_are_there(distribution: str) -> None:
    workload = make(
        readproportion="0.7", updateproportion="0", insertproportion="0.3", requestdistribution=distribution
    )
    there = set(range(1000))
    inserted = []
    for operation, number, _ in workload.transactions():
        if operation is Operation.INSERT:
            inserted.append(number)
            workload.inserted(number)
            there.add(number)
        else:
            assert number in there
    assert inserted == list(range(1000, 1000 + len(inserted)))
    assert len(inserted) == pytest.approx(1500, abs=150)


def test_inserts_that_end_out_of_order_are_asked_for_when_all_before_them_are_there() -> None:
    workload = make(recordcount="10")
    for number in (12, 11, 14):
        workload.inserted(number)
    assert workload._records == 10
    workload.inserted(10)
    assert workload._records == 13


def test_a_run_in_which_nothing_happens_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing to do"):
        make(readproportion="0", updateproportion="0").transactions()


def test_records_are_a_kilobyte_of_fields_and_come_back_from_msgpack() -> None:
    workload = make()
    record = workload.record(b"user1")
    assert list(record) == [f"field{i}" for i in range(10)]
    assert all(len(value) == 100 for value in record.values())
    assert unpack(pack(record)) == record
    assert 1000 < len(pack(record)) < 1200
    assert workload.record(b"user1") != record
    with pytest.raises(ValueError, match="no record"):
        unpack(b"\1")


def test_fields_read_and_changed_are_one_or_all() -> None:
    workload, record = make(), make().record(b"k")
    assert workload.read_fields(record) == record
    assert len(workload.changed_fields(b"k")) == 1
    other = make(readallfields="false", writeallfields="true")
    assert len(other.read_fields(record)) == 1
    assert other.changed_fields(b"k").keys() == record.keys()


def test_integrity_tells_right_from_wrong_from_missing() -> None:
    workload, again = make(dataintegrity="true"), make(dataintegrity="true")
    record = workload.record(b"k")
    assert record == again.record(b"k") != workload.record(b"other")
    assert workload.is_intact(b"k", record)
    assert workload.is_intact(b"k", workload.changed_fields(b"k"))
    assert not workload.is_intact(b"other", record)
    assert not workload.is_intact(b"k", {})
    assert not workload.is_intact(b"k", {**record, "field3": bytes(100)})
