"""Texts for people, and the bound on what a status carries."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from gpkvs.errors import GpkvsError
from gpkvs.server.calls.status import status_text
from gpkvs.text import counted, no_such, quoted

# What gRPC's percent-encoding leaves alone.
PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


@pytest.mark.parametrize("given", ["", "users", "a" * 64, b"", b"key", b"\x00\xff", "naïve", "it's"])
def test_short_texts_are_quoted_whole(given: bytes | str) -> None:
    assert quoted(given) == repr(given)


@pytest.mark.parametrize(
    ("given", "length"),
    [
        (bytes(4096), "(4,096 bytes)"),
        ("a" * 1_000_000, "(1,000,000 characters)"),
        ("\x00" * 81, "(81 characters)"),
        (bytes(40), "(40 bytes)"),
        ("\U0001f600" * 100, "(100 characters)"),
    ],
)
def test_long_texts_are_cut_and_say_how_long_they_were(given: bytes | str, length: str) -> None:
    text = quoted(given)
    assert text.startswith(repr(given)[:60])
    assert text.endswith(f"... {length}")
    assert len(text) < 120


def test_few_names_are_all_listed() -> None:
    assert no_such("table", "x", ["default", "users"]) == "there is no table 'x'; there are default, users"


@pytest.mark.parametrize("wrong", ["user_12", "usr_123", "uesr_123", "xuser_123", "user_123" + "x" * 1_000_000])
def test_of_many_names_the_nearest_are_listed(wrong: str) -> None:
    names = ["default", *(f"user_{i}" for i in range(100, 400))]
    text = no_such("table", wrong, names)
    assert "there are 301" in text
    assert "user_123" in text or "user_12" in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2000, "record", "2,000 records"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (2, "key", "2 keys"),
    ],
)
def test_counts_agree_with_their_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


@pytest.mark.parametrize("text", ["", "a short one", "100 % of 'naïve'", "a" * 3072, PLAIN * 32])
def test_a_status_text_that_fits_stays_as_it_is(text: str) -> None:
    assert status_text(GpkvsError(text)) == text


@pytest.mark.parametrize("letter", ["a", "%", "\x00", "é", "€", "\U0001f600", "\udcff"])
@pytest.mark.parametrize("length", [2_000, 3_073, 1_000_000])
def test_a_status_text_fits_trailers_after_percent_encoding(letter: str, length: int) -> None:
    text = status_text(GpkvsError("a" + length * letter))
    assert len(quote(text, safe=PLAIN)) <= 3072
    if letter != "\udcff":
        assert ("a" + length * letter).startswith(text.removesuffix("..."))  # cut between two characters
    assert text.startswith("a")
    assert len(text) > 250
