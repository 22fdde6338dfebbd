"""Damaged stores: a small part of `gpkvs bitflip`, and proof that it notices what it is there to notice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpkvs.errors import InvalidArgumentError
from gpkvs.recovery.proof.damage import bitflip as bitflip_module
from gpkvs.recovery.proof.damage import judge_process, sample_store
from gpkvs.recovery.proof.damage.bitflip import BitflipOptions, bitflip, plan
from gpkvs.recovery.proof.damage.damage_kinds import Damage, structure_bits
from gpkvs.recovery.proof.damage.judge_process import DamageJudge, DamageOutcome
from gpkvs.recovery.proof.damage.parts import CHECKSUMS, LAST_BLOBS, LAST_FRAME, LAST_RECORDS, RECORDS, VALUES, Part
from gpkvs.recovery.proof.damage.sample_store import IMAGES, SampleStore
from gpkvs.recovery.startup.check import CheckReport
from tests.serving import error_line, run_gpkvs


def test_nothing_is_missed(tmp_path: Path) -> None:
    done = run_gpkvs("bitflip", "--bits=300", "--bursts=100", "--every=200", "--json")
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert report["damages"] >= 300 + 100 + 2 * 8 * (4 * 512 + 8 + 2560) // 200 - 2
    outcomes = report["outcomes"]
    assert (outcomes.pop("missed"), outcomes.pop("cut")) == (0, 0)
    assert min(outcomes.values()) > 10, f"an outcome hardly ever came up: {outcomes}"
    # What DESIGN promises to check is never just harmless: a root copy or an active log is refused or repaired.
    assert report["by_file"]["catalog-1.json"]["harmless"] == 0
    assert report["by_file"]["LOCK"]["refused"] == 0
    assert report["by_file"][VALUES]["reported"] > 0
    assert report["by_file"][CHECKSUMS]["reported"] > 0


def test_nothing_is_missed_in_a_store_with_a_journal() -> None:
    done = run_gpkvs("bitflip", "--commit=journal", "--bits=200", "--bursts=60", "--every=800", "--json")
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert report["outcomes"].pop("missed") == 0
    assert min(report["outcomes"].values()) > 3, f"an outcome hardly ever came up: {report['outcomes']}"
    for place, outcomes in report["by_file"].items():
        may_be_cut = place in (LAST_FRAME, LAST_RECORDS, LAST_BLOBS)
        assert may_be_cut or not outcomes["cut"], place
        assert outcomes["reported"] or place not in (RECORDS, VALUES, CHECKSUMS, "index-0-0", "root"), place
        assert outcomes["refused"] or place not in ("data: frames to replay", "catalog-1.json"), place


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> DamageJudge:
    return DamageJudge(tmp_path_factory.mktemp("bitflip"), "undo")


@pytest.fixture(scope="module")
def journal_judge(tmp_path_factory: pytest.TempPathFactory) -> DamageJudge:
    return DamageJudge(tmp_path_factory.mktemp("bitflip"), "journal")


def first_record(judge: DamageJudge) -> Damage:
    """Damage the value of a record that is live."""
    contents = sample_store.contents("idle").bytes_table
    value = max(contents.values(), key=len)
    return Damage("idle", "heap", judge.samples["idle"].files["heap"].index(value), b"\x01")


def test_the_sample_is_the_same_each_time(judge: DamageJudge, journal_judge: DamageJudge, tmp_path: Path) -> None:
    for judged in (judge, journal_judge):
        again = sample_store.make(tmp_path, list(judged.samples))
        for image, sample in judged.samples.items():
            for name in set(again[image].files) - {"LOCK", "recovery.json"}:
                assert again[image].files[name] == sample.files[name]


def test_who_judges_has_the_images_of_the_plan(tmp_path: Path) -> None:
    images, copies = tmp_path / "images", tmp_path / "copies"
    for each in (images, copies):
        each.mkdir()
    made = sample_store.make(images, IMAGES["undo"])
    (images / "idle/LOCK").write_bytes(b"of the plan")
    assert DamageJudge(copies, "undo", images).samples["idle"].files == {**made["idle"].files, "LOCK": b"of the plan"}


@pytest.mark.parametrize(
    ("damage", "outcome"),
    [
        ("idle:root:8195:01", DamageOutcome.REFUSED),
        ("active:log:8192:01", DamageOutcome.REFUSED),
        ("idle:log:8192:01", DamageOutcome.HARMLESS),
        ("idle:root:20:01", DamageOutcome.REPORTED),
        ("active:catalog-1.json:0:01", DamageOutcome.REFUSED),
        ("idle:LOCK:0:01", DamageOutcome.HARMLESS),
    ],
)
def test_outcomes(judge: DamageJudge, damage: str, outcome: DamageOutcome) -> None:
    assert judge.judge(Damage.parse(damage)).outcome is outcome


def place(judge: DamageJudge, image: str, name: str, byte: int) -> Damage:
    """Damage a byte of a part."""
    part: Part = next(part for part in judge.samples[image].parts if part.name == name)
    return Damage(image, part.file, part.ranges[0][0] + byte, b"\x01")


@pytest.mark.parametrize(
    ("image", "part", "byte", "outcome"),
    [
        ("closed", "data: frames to replay", 8, DamageOutcome.REFUSED),
        ("killed", "data: frames to replay", 1024, DamageOutcome.REFUSED),
        ("killed", LAST_FRAME, 8, DamageOutcome.CUT),
        ("killed", LAST_FRAME, 1024, DamageOutcome.CUT),
        ("killed", LAST_RECORDS, 40, DamageOutcome.CUT),
        ("checkpoint", LAST_FRAME, 8, DamageOutcome.REFUSED),
        ("checkpoint", LAST_FRAME, 1024, DamageOutcome.REFUSED),
        ("checkpoint", LAST_RECORDS, 40, DamageOutcome.REFUSED),
        ("closed", LAST_FRAME, 8, DamageOutcome.HARMLESS),
        ("closed", "data: heads of segments", 8, DamageOutcome.HARMLESS),
        ("closed", "data: frames before the checkpoint", 8, DamageOutcome.HARMLESS),
    ],
)
def test_outcomes_with_a_journal(
    journal_judge: DamageJudge, image: str, part: str, byte: int, outcome: DamageOutcome
) -> None:
    assert journal_judge.judge(place(journal_judge, image, part, byte)).outcome is outcome


@pytest.mark.parametrize("image", ["idle-blobs", "active-blobs", "closed-blobs", "killed-blobs"])
def test_bits_of_checksums_and_of_records_that_name_blobs_are_found(
    judge: DamageJudge, journal_judge: DamageJudge, image: str
) -> None:
    judged = judge if image in judge.samples else journal_judge
    for damage in list(structure_bits(image, judged.samples[image]))[::29]:
        verdict = judged.judge(damage)
        expected = DamageOutcome.CUT if verdict.place in (LAST_BLOBS, LAST_RECORDS) else DamageOutcome.REPORTED
        assert verdict.outcome is expected, verdict


@pytest.mark.parametrize(
    ("image", "part", "byte", "outcome"),
    [
        ("idle-blobs", VALUES, 209_999, DamageOutcome.REPORTED),
        ("active-blobs", VALUES, 0, DamageOutcome.REPORTED),
        ("closed-blobs", VALUES, 100_000, DamageOutcome.REPORTED),
        ("killed-blobs", VALUES, 150_000, DamageOutcome.REPORTED),
        ("killed-blobs", LAST_BLOBS, 65_999, DamageOutcome.CUT),
    ],
)
def test_damaged_values_in_blobs(
    judge: DamageJudge, journal_judge: DamageJudge, image: str, part: str, byte: int, outcome: DamageOutcome
) -> None:
    judged = judge if image in judge.samples else journal_judge
    assert judged.judge(place(judged, image, part, byte)).outcome is outcome


def test_what_no_record_names_is_harmless(judge: DamageJudge) -> None:
    """The blob of a batch that recovery takes back is nobody's."""
    sample = judge.samples["active-blobs"]
    free = next(at for at in range(len(sample.files["blobs"])) if sample.names("blobs", at, b"\x01") == ["blobs"])
    taken_back = sample_store.contents("idle-blobs").bytes_table[b"large-2"]
    for at in (free, sample.files["blobs"].index(taken_back)):
        assert judge.judge(Damage("active-blobs", "blobs", at, b"\x01")).outcome is DamageOutcome.HARMLESS


def test_damage_of_a_blob_that_no_read_finds_is_missed(judge: DamageJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    damage = place(judge, "idle-blobs", CHECKSUMS, 0)
    monkeypatch.setitem(judge._readers, "idle-blobs", judge._readers["idle"])  # it reads no large value
    verdict = judge.judge(damage)
    assert verdict.outcome is DamageOutcome.MISSED
    assert "no read found" in verdict.detail


def test_a_batch_that_was_acknowledged_and_is_cut_is_missed(
    journal_judge: DamageJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later frame says that it was durable: the journal alone cannot tell. So only the last batch may be cut."""
    damage = place(journal_judge, "killed", LAST_FRAME, 8)
    monkeypatch.setattr(journal_judge, "_before_last", journal_judge._readers)
    assert journal_judge.judge(damage).outcome is DamageOutcome.MISSED
    monkeypatch.setattr(judge_process, "LAST_FRAME", "another")
    assert journal_judge.judge(damage).outcome is DamageOutcome.MISSED


def test_a_wrong_value_is_missed(judge: DamageJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    key, value = next(iter(sample_store.contents("idle").bytes_table.items()))
    readers = judge._readers["idle"]
    values = [[value + b"!" if value == v else v for v in table] for table in readers._values]
    monkeypatch.setattr(readers, "_values", values)
    verdict = judge.judge(Damage.parse("idle:LOCK:0:01"))
    assert verdict.outcome is DamageOutcome.MISSED
    assert repr(key) in verdict.detail


def test_damage_that_check_does_not_name_is_missed(judge: DamageJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge.judge(first_record(judge)).outcome is DamageOutcome.REPORTED
    monkeypatch.setattr(judge_process, "check", CheckReport)
    assert judge.judge(first_record(judge)).outcome is DamageOutcome.MISSED
    assert judge.judge(Damage.parse("idle:root:8195:01")).outcome is DamageOutcome.MISSED


def test_a_refused_store_that_was_written_to_is_missed(judge: DamageJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(path: Path, image: str) -> object:
        (path / "heap").write_bytes(b"")
        return sample_store.open_sample(path, image)

    monkeypatch.setattr(judge_process, "open_sample", careless)
    verdict = judge.judge(Damage.parse("idle:root:8195:01"))
    assert verdict.outcome is DamageOutcome.MISSED
    assert "wrote to the store" in verdict.detail


@pytest.fixture
def made(judge: DamageJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `plan` take the samples that are there: they are the same each time."""

    def make(directory: Path, images: Sequence[str]) -> dict[str, SampleStore]:
        for image in images:
            (directory / image).mkdir()
            for name, data in judge.samples[image].files.items():
                (directory / image / name).write_bytes(data)
        return {image: judge.samples[image] for image in images}

    monkeypatch.setattr(bitflip_module, "make", make)


@pytest.mark.usefixtures("made")
def test_a_worker_that_dies_has_missed_and_the_others_go_on(tmp_path: Path) -> None:
    options = BitflipOptions(bits=5, bursts=0, seed=1, directory=tmp_path, structures=2000, workers=1)
    deadly = Damage("idle", "no such file", 0, b"\x01")
    damages = plan(options)
    report = bitflip(options, [deadly, *damages])
    assert [verdict.damage for verdict in report.missed] == [str(deadly)]
    assert "KeyError" in report.missed[0].detail
    assert report.outcomes.total() == len(damages) + 1


@pytest.mark.usefixtures("made")
def test_a_seed_repeats_the_plan(tmp_path: Path) -> None:
    options = BitflipOptions(bits=50, bursts=50, seed=1, directory=tmp_path, structures=3000)
    first = [damage for damage in plan(options) if damage.file != "recovery.json"]
    assert first == [damage for damage in plan(options) if damage.file != "recovery.json"]
    assert first != [damage for damage in plan(replace(options, seed=2)) if damage.file != "recovery.json"]


def test_one_damage_can_be_repeated() -> None:
    done = run_gpkvs("bitflip", "--only", "active:log:8192:01", "--json")
    assert json.loads(done.stdout)["outcomes"]["refused"] == 1
    assert done.returncode == 0


@pytest.mark.parametrize("text", ["nonsense", "idle:root:x:01", "no:root:0:01", "idle:root:0:", "idle:root:-1:01"])
def test_what_is_no_damage_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="IMAGE:FILE:OFFSET:MASK"):
        Damage.parse(text)


def test_on_the_command_line() -> None:
    assert "IMAGE:FILE:OFFSET:MASK" in error_line(run_gpkvs("bitflip", "--only", "nonsense"), 1)
