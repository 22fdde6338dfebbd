"""Training of a neural network that checkpoints its weights and biases.

The network has three dense layers. It learns to tell ten kinds of small pictures apart: of each kind there is one
pattern, and every picture is a pattern with noise. Each pass takes some pictures, forwards and backwards; every tenth
pass is followed by a checkpoint of 3.2 MB. Which pictures a pass takes follows from its number, so a run after a crash
ends with the same weights.

After GPM (ASPLOS '22), section 4.2 and figure 7; there the network is LeNet, and the pictures are MNIST's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from gpkvs.bench.gpm.workload import main
from gpkvs.bench.gpm.workloads.iterative import Iterative

WIDTHS = (784, 800, 200, 10)  # pixels, two hidden layers, kinds
RATE = 0.05


@dataclass(frozen=True)
class Size:
    """Pictures, those of one pass, and passes."""

    pictures: int
    batch: int
    passes: int
    every: int = 10

    @property
    def file_bytes(self) -> int:
        """Two copies of weights and biases."""
        return 8 << 20

    @property
    def memory_bytes(self) -> int:
        """The pictures, weights, biases and what a pass computes."""
        return 4 * WIDTHS[0] * self.pictures + 12 * sum(WIDTHS) * self.batch + (16 << 20)


class Dnn(Iterative):
    """See the text above."""

    size: Size
    SIZES: ClassVar = {
        "tiny": Size(100, 10, 20),
        "small": Size(2_000, 50, 100),
        "paper": Size(60_000, 64, 1_000),
    }

    def first(self) -> dict[str, Any]:
        """Make the pictures; return random weights, and biases of zeros."""
        rng, xp = np.random.default_rng(4), self.place.xp
        patterns = rng.random((WIDTHS[-1], WIDTHS[0]), np.float32)
        kinds = rng.integers(0, WIDTHS[-1], self.size.pictures)
        noise = rng.standard_normal((self.size.pictures, WIDTHS[0]), np.float32)
        self.pictures = xp.asarray(patterns[kinds] + np.float32(0.5) * noise)
        self.kinds = xp.asarray(np.eye(WIDTHS[-1], dtype=np.float32)[kinds])
        arrays = {}
        for layer, (below, above) in enumerate(pairwise(WIDTHS)):
            weight = rng.standard_normal((below, above), np.float32) * np.float32(np.sqrt(2 / below))
            arrays[f"weight{layer}"] = xp.asarray(weight)
            arrays[f"bias{layer}"] = xp.zeros(above, xp.float32)
        return arrays

    def advance(self) -> None:
        """Move weights and biases against the gradient of some pictures' loss."""
        xp = self.place.xp
        chosen = xp.asarray(np.random.default_rng((5, self.done)).integers(0, self.size.pictures, self.size.batch))
        values = self._forwards(self.pictures[chosen])
        error = (values[-1] - self.kinds[chosen]) / self.size.batch
        for layer in reversed(range(len(WIDTHS) - 1)):
            weight, bias = self.arrays[f"weight{layer}"], self.arrays[f"bias{layer}"]
            below = (error @ weight.T) * (values[layer] > 0)
            weight -= RATE * (values[layer].T @ error)
            bias -= RATE * error.sum(0)
            error = below

    def _forwards(self, pictures: Any) -> list[Any]:
        """Return the values of every layer; those of the last are probabilities of kinds."""
        xp, values = self.place.xp, [pictures]
        for layer in range(len(WIDTHS) - 1):
            values.append(values[-1] @ self.arrays[f"weight{layer}"] + self.arrays[f"bias{layer}"])
            if layer < len(WIDTHS) - 2:
                xp.maximum(values[-1], 0, out=values[-1])
        odds = xp.exp(values[-1] - values[-1].max(1, keepdims=True))
        values[-1] = odds / odds.sum(1, keepdims=True)
        return values

    def accuracy(self) -> float:
        """Return which part of the pictures it tells right."""
        return float((self._forwards(self.pictures)[-1].argmax(1) == self.kinds.argmax(1)).mean())


if __name__ == "__main__":
    main(Dnn, __doc__)
