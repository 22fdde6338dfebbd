"""Distributions: their hash, their shape, their range. Every test prints its seed by its name."""

from __future__ import annotations

import numpy as np
import pytest

from gpkvs.client.ycsb.generators import (
    SCRAMBLED_ITEMS,
    SCRAMBLED_ZETA,
    Generator,
    Latest,
    ScrambledZipfian,
    Uniform,
    Zipfian,
    fnv_hash64,
)

DRAWS = 200_000
SEEDS = [7, 1234]


def zeta(items: int) -> float:
    return float((np.arange(1, items + 1) ** -0.99).sum())


def test_keys_are_hashed_as_ycsb_does() -> None:
    # The first keys of every YCSB load with insertorder=hashed.
    assert fnv_hash64(np.arange(3)).tolist() == [6284781860667377211, 8517097267634966620, 1820151046732198393]


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_draws_every_record_alike(seed: int) -> None:
    drawn = Uniform(np.random.default_rng(seed), 100, 50).draw(DRAWS)
    counts = np.bincount(drawn - 100, minlength=50)
    assert len(counts) == 50
    expected = DRAWS / 50
    # Chi-squared with 49 degrees of freedom exceeds 100 with a probability below 1 in 40,000.
    assert float(((counts - expected) ** 2 / expected).sum()) < 100


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("items", [1, 2, 3, 1000, 1_000_000])
def test_zipfian_ranks_have_their_popularity(seed: int, items: int) -> None:
    drawn = Zipfian(np.random.default_rng(seed), items).draw(DRAWS)
    assert drawn.min() >= 0
    assert drawn.max() < items
    for rank in range(min(items, 2)):  # the formula is exact for these two, an approximation for the others
        expected = (rank + 1) ** -0.99 / zeta(items)
        assert (drawn == rank).mean() == pytest.approx(expected, abs=0.005)
    if items >= 1000:
        half = items // 2
        assert (drawn < half).mean() == pytest.approx(zeta(half) / zeta(items), abs=0.02)


def test_the_scrambled_zeta_is_that_of_ten_thousand_million_items() -> None:
    # Euler-Maclaurin: the sum to N = the sum to n, plus the integral between, plus half the difference of the ends.
    n, theta = 1_000_000, 0.99
    integral = (SCRAMBLED_ITEMS ** (1 - theta) - n ** (1 - theta)) / (1 - theta)
    ends = (SCRAMBLED_ITEMS**-theta - n**-theta) / 2
    assert pytest.approx(zeta(n) + integral + ends, rel=1e-9) == SCRAMBLED_ZETA


@pytest.mark.parametrize("seed", SEEDS)
def test_scrambled_zipfian_spreads_the_popular_records(seed: int) -> None:
    records = 1000
    drawn = ScrambledZipfian(np.random.default_rng(seed), 500, records).draw(DRAWS)
    assert drawn.min() >= 500
    assert drawn.max() < 1500
    counts = np.bincount(drawn - 500, minlength=records)
    # The most popular item of all has 1 in zeta of the draws, and lies where its hash says.
    top = int(fnv_hash64(np.zeros(1, np.int64))[0] % records)
    assert counts.argmax() == top
    assert counts[top] / DRAWS == pytest.approx(1 / SCRAMBLED_ZETA, abs=0.005)
    assert (counts > 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_latest_prefers_the_newest_also_when_there_are_more(seed: int) -> None:
    records = 1000
    latest = Latest(np.random.default_rng(seed), lambda: records)
    drawn = latest.draw(DRAWS)
    assert (drawn == 999).mean() == pytest.approx(1 / zeta(1000), abs=0.005)
    assert drawn.min() >= 0
    records = 2000
    drawn = latest.draw(DRAWS)
    assert (drawn == 1999).mean() == pytest.approx(1 / zeta(2000), abs=0.005)
    assert (drawn == 1998).mean() == pytest.approx(2**-0.99 / zeta(2000), abs=0.005)


@pytest.mark.parametrize("kind", [Uniform, ScrambledZipfian])
def test_a_seed_repeats_the_draws(kind: type[Uniform] | type[ScrambledZipfian]) -> None:
    first, second, other = (kind(np.random.default_rng(seed), 0, 10**6) for seed in (5, 5, 6))
    generators: list[Generator] = [first, second, other]
    draws = [generator.draw(100).tolist() for generator in generators]
    assert draws[0] == draws[1] != draws[2]
