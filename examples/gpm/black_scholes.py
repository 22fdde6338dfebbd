"""Prices of options, by the formula of Black and Scholes, that are checkpointed.

A pass is one scenario of the market: a rate of interest, and how much prices move. Each thread prices one option, a
call and a put, and adds them to the means over the scenarios so far. A checkpoint saves both means.

After GPM (ASPLOS '22), section 4.2 and table 1: 256 M options, whose prices take 2 GiB, twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpkvs import gpm
from gpkvs.bench.gpm.workload import main
from gpkvs.bench.gpm.workloads.iterative import Iterative

SOURCE = """
#include "gpm.cuh"

// The probability that a number of the normal distribution is below x.
GPM_DEVICE float below(float x) { return 0.5f * erfcf(-0.70710678f * x); }

#define PRICE_ARGS(F)                                                              \\
    F(const float*, spot) F(const float*, strike) F(const float*, years)           \\
    F(double, rate) F(double, volatility) F(u64, scenarios) F(float*, call) F(float*, put)
GPM_KERNEL(price, PRICE_ARGS) {
    const float rate = (float)a.rate, years = a.years[i];
    const float deviation = (float)a.volatility * sqrtf(years);
    const float d1 = logf(a.spot[i] / a.strike[i]) / deviation + rate * years / deviation + 0.5f * deviation;
    const float d2 = d1 - deviation;
    const float later = a.strike[i] * expf(-rate * years);  // what the strike is worth today
    const float call = a.spot[i] * below(d1) - later * below(d2);
    const float put = later * below(-d2) - a.spot[i] * below(-d1);
    a.call[i] += (call - a.call[i]) / (float)a.scenarios;
    a.put[i] += (put - a.put[i]) / (float)a.scenarios;
}
"""


@dataclass(frozen=True)
class Size:
    """Options, and scenarios."""

    options: int
    passes: int
    every: int

    @property
    def file_bytes(self) -> int:
        """Two copies of two prices."""
        return 16 * self.options + (1 << 20)

    @property
    def memory_bytes(self) -> int:
        """Three numbers of an option, and two prices; and what is needed to make them."""
        return 28 * self.options


class BlackScholes(Iterative):
    """See the text above."""

    size: Size
    SIZES: ClassVar = {"tiny": Size(1_000, 4, 2), "small": Size(50_000, 40, 4), "paper": Size(256 << 20, 20, 5)}

    def first(self) -> dict[str, Any]:
        """Make the options; return means of no scenarios."""
        xp, options = self.place.xp, self.size.options
        self.kernels = gpm.Kernels(SOURCE, self.place, name="black_scholes")
        number = xp.arange(options, dtype=xp.uint32)
        self.spot, self.strike, self.years = (
            low + (high - low) * _scattered(xp, number, seed)
            for seed, (low, high) in enumerate(((5.0, 30.0), (1.0, 100.0), (0.25, 10.0)), 1)
        )
        return {"call": xp.zeros(options, xp.float32), "put": xp.zeros(options, xp.float32)}

    def advance(self) -> None:
        """Price all options in one more scenario."""
        self.kernels.launch(
            "price",
            self.size.options,
            spot=self.spot,
            strike=self.strike,
            years=self.years,
            rate=0.01 + 0.002 * (self.done % 10),
            volatility=0.1 + 0.03 * (self.done % 7),
            scenarios=self.done + 1,
            **self.arrays,
        )


def _scattered(xp: Any, number: Any, seed: int) -> Any:
    """Return numbers of 0 to 1 that look random: a hash of each number and the seed."""
    mixed = number * xp.uint32(0x9E3779B1) + xp.uint32(seed * 0x85EBCA6B & 0xFFFFFFFF)
    mixed ^= mixed >> xp.uint32(15)
    mixed *= xp.uint32(0x2C1B3C6D)
    mixed ^= mixed >> xp.uint32(12)
    return mixed.astype(xp.float32) * xp.float32(2**-32)


if __name__ == "__main__":
    main(BlackScholes, __doc__)
