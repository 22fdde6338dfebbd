"""Speckle-reducing anisotropic diffusion that persists its image and its coefficients: native persistence.

An image from radar or ultrasound has speckles: noise that multiplies. Each pass computes for every pixel how much may
diffuse there (little at edges, much where only speckles are), then lets it diffuse (Yu and Acton, IEEE Transactions on
Image Processing 11, 2002). Kernels store the coefficients, and the next image beside the one that they read. A word
says how many half passes are final; a run after a crash goes on from there. What a half pass reads does not change, so
it can be done again.

After GPM (ASPLOS '22), section 4.3 and table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpkvs import gpm
from gpkvs.bench.gpm.workload import Workload, main, persistent, require_room
from gpkvs.config import DurabilityName

STEP = 0.5  # of time, in a pass

SOURCE = """
#include "gpm.cuh"

// Neighbours of pixel i; beyond an edge lies the pixel itself.
#define NEIGHBOURS(rows, columns)                              \\
    const u64 row = i / columns, column = i % columns;         \\
    const u64 north = row > 0 ? i - columns : i;               \\
    const u64 south = row + 1 < rows ? i + columns : i;        \\
    const u64 west = column > 0 ? i - 1 : i;                   \\
    const u64 east = column + 1 < columns ? i + 1 : i;

// `speckle` is the square of the coefficient of variation where there are only speckles. Kernels read volatile copies.
#define WEIGH_ARGS(F) F(const float*, image) F(double, speckle) F(u64, rows) F(u64, columns) \\
    F(float*, copy) F(float*, coefficient)
GPM_KERNEL(weigh, WEIGH_ARGS) {
    NEIGHBOURS(a.rows, a.columns)
    const float here = a.image[i], speckle = (float)a.speckle;
    const float to_north = a.image[north] - here, to_south = a.image[south] - here;
    const float to_west = a.image[west] - here, to_east = a.image[east] - here;
    const float gradient = (to_north * to_north + to_south * to_south + to_west * to_west + to_east * to_east) /
                           (here * here);
    const float laplacian = (to_north + to_south + to_west + to_east) / here;
    const float damping = 1.0f + 0.25f * laplacian;
    const float variation = (0.5f * gradient - 0.0625f * laplacian * laplacian) / (damping * damping);
    float weight = 1.0f / (1.0f + (variation - speckle) / (speckle * (1.0f + speckle)));
    weight = weight < 0.0f ? 0.0f : weight > 1.0f ? 1.0f : weight;
    a.copy[i] = weight;
    gpm_store(&a.coefficient[i], weight);
}

#define DIFFUSE_ARGS(F) F(const float*, image) F(const float*, weight) F(u64, rows) F(u64, columns) F(double, step) \\
    F(float*, copy) F(float*, next)
GPM_KERNEL(diffuse, DIFFUSE_ARGS) {
    NEIGHBOURS(a.rows, a.columns)
    const float here = a.image[i];
    const float flow = a.weight[i] * (a.image[north] - here) + a.weight[south] * (a.image[south] - here) +
                       a.weight[i] * (a.image[west] - here) + a.weight[east] * (a.image[east] - here);
    const float value = here + 0.25f * (float)a.step * flow;
    a.copy[i] = value;
    gpm_store(&a.next[i], value);
}
"""


@dataclass(frozen=True)
class Size:
    """The image, and how many passes it gets."""

    rows: int
    columns: int
    passes: int

    @property
    def pixels(self) -> int:
        """How many pixels there are."""
        return self.rows * self.columns

    @property
    def file_bytes(self) -> int:
        """Two images and the coefficients."""
        return 12 * self.pixels + (1 << 20)

    @property
    def memory_bytes(self) -> int:
        """Copies of two images and the coefficients, and the first image."""
        return 16 * self.pixels


class Srad(Workload):
    """See the text above."""

    SIZES: ClassVar = {"tiny": Size(8, 16, 2), "small": Size(512, 512, 20), "paper": Size(128 << 10, 1 << 10, 10)}

    def __init__(
        self, folder: Path, size: Size, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None:
        self.size, self.place = size, gpm.find_place(place)
        require_room(folder, size, self.place)
        self._kernels = gpm.Kernels(SOURCE, self.place, name="srad")
        self.images = [
            persistent(folder / f"image{number}.gpm", size.pixels, "f4", self.place, durability) for number in range(2)
        ]
        self.coefficient = persistent(folder / "coefficient.gpm", size.pixels, "f4", self.place, durability)
        self.final = persistent(folder / "final.gpm", 1, "u8", self.place, durability)
        self._copy()

    def _copy(self) -> None:
        """Copy what is final to volatile memory: half pass 2k gives coefficients, 2k + 1 the image k + 1."""
        xp, half = self.place.xp, int(self.final.host[0])
        first = self.images[half // 2 % 2].host if half >= 2 else _speckled(self.size)
        self.image = xp.array(first)
        self.spare = xp.empty_like(self.image)
        self.weight = xp.array(self.coefficient.host)

    def step(self) -> bool:
        """Do half a pass: the coefficients, or the next image from them."""
        half = int(self.final.host[0])
        if half == 2 * self.size.passes:
            return False
        if half % 2 == 0:
            self._weigh()
        else:
            self._diffuse(self.images[(half + 1) // 2 % 2])
        self.final.host[0] = half + 1
        self.final.persist()
        return True

    def _weigh(self) -> None:
        even = self.image.reshape(self.size.rows, self.size.columns)[:32, :32]  # nothing but speckles
        speckle = float(even.var(dtype=np.float64)) / float(even.mean(dtype=np.float64)) ** 2
        self._kernels.launch(
            "weigh",
            self.size.pixels,
            image=self.image,
            speckle=speckle,
            rows=self.size.rows,
            columns=self.size.columns,
            copy=self.weight,
            coefficient=self.coefficient,
        )

    def _diffuse(self, following: gpm.PersistentArray) -> None:
        self._kernels.launch(
            "diffuse",
            self.size.pixels,
            image=self.image,
            weight=self.weight,
            rows=self.size.rows,
            columns=self.size.columns,
            step=STEP,
            copy=self.spare,
            next=following,
        )
        self.image, self.spare = self.spare, self.image

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the last image and its coefficients."""
        return {"image": self.images[self.size.passes % 2].host.copy(), "coefficient": self.coefficient.host.copy()}

    def close(self) -> None:
        """Close the arrays."""
        for array in (*self.images, self.coefficient, self.final):
            array.close()


def _speckled(size: Size) -> NDArray[np.float32]:
    """Return an image of bright discs, with speckles."""
    rng = np.random.default_rng(3)
    row, column = np.arange(size.rows)[:, None] % 256, np.arange(size.columns)[None, :] % 256
    clean = np.where((row - 128) ** 2 + (column - 128) ** 2 < 80**2, np.float32(2), np.float32(1))
    speckles = rng.standard_normal(size.pixels, np.float32)
    image: NDArray[np.float32] = np.ravel(clean) * np.exp(np.float32(0.2) * speckles)
    return image


if __name__ == "__main__":
    main(Srad, __doc__)
