"""The kinds of damage that `gpkvs bitflip` does to a store: every bit of structures, random bits, bursts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gpkvs.errors import InvalidArgumentError
from gpkvs.recovery.proof.damage.parts import Part, Range
from gpkvs.recovery.proof.damage.sample_store import IMAGES, SampleStore
from gpkvs.text import quoted

_BURST_BYTES_MAX = 64
_UNIT_BYTES = 16
_IMAGES = [image for images in IMAGES.values() for image in images]


@dataclass(frozen=True)
class Damage:
    """Inverts some bits of one file.

    Parameters
    ----------
    image
        Of `gpkvs.recovery.proof.damage.sample_store.IMAGES`.
    file, offset
        The place of the first byte.
    mask
        The bits to invert, in one or more bytes.
    """

    image: str
    file: str
    offset: int
    mask: bytes

    def __str__(self) -> str:
        return f"{self.image}:{self.file}:{self.offset}:{self.mask.hex()}"

    @staticmethod
    def parse(text: str) -> Damage:
        """Read what `str` wrote.

        Raises
        ------
        InvalidArgumentError
            If the text is something else.
        """
        try:
            image, file, offset, mask = text.split(":")
            damage = Damage(image, file, int(offset), bytes.fromhex(mask))
        except ValueError:
            damage = None
        if damage is None or damage.image not in _IMAGES or damage.offset < 0 or not damage.mask:
            raise InvalidArgumentError(
                f"{quoted(text)} is not IMAGE:FILE:OFFSET:MASK, as in active:log:8192:01 (the images are "
                f"{', '.join(_IMAGES)}, the mask is in hexadecimal)",
                field="only",
            )
        return damage

    def apply(self, data: bytes) -> bytes:
        """Return a file's bytes with the damage; the file may be shorter than when the damage was chosen."""
        end = self.offset + len(self.mask)
        damaged = bytes(a ^ b for a, b in zip(data[self.offset : end], self.mask, strict=False))
        return data[: self.offset] + damaged + data[end:]


def structure_bits(image: str, sample: SampleStore) -> Iterator[Damage]:
    """Yield every bit of the structures: roots, flag, descriptors and log runs, or roots and headers of frames."""
    for file, first, count in sample.structures:
        for offset in range(first, first + count):
            for bit in range(8):
                yield Damage(image, file, offset, bytes([1 << bit]))


def random_bits(samples: dict[str, SampleStore], count: int, seed: int) -> Iterator[Damage]:
    """Yield single bits of the files of both images."""
    rng = random.Random(seed)
    places = _Places(samples)
    for _ in range(count):
        image, file, offset = places.draw(rng)
        yield Damage(image, file, offset, bytes([1 << rng.randrange(8)]))


def random_bursts(samples: dict[str, SampleStore], count: int, seed: int) -> Iterator[Damage]:
    """Yield runs of 2 to 64 bytes, in which random bits are inverted."""
    rng = random.Random(f"bursts {seed}")
    places = _Places(samples)
    for _ in range(count):
        image, file, offset = places.draw(rng)
        room = len(samples[image].files[file]) - offset
        mask = rng.randbytes(min(rng.randint(2, _BURST_BYTES_MAX), room))
        if any(mask):
            yield Damage(image, file, offset, mask)


class _Places:
    """Draws bytes of parts of files: half of them anywhere, half where a part is not all zero."""

    def __init__(self, samples: dict[str, SampleStore]) -> None:
        self._samples = samples
        self._used = {
            (image, part.name): list(_used_units(sample.files[part.file], part))
            for image, sample in samples.items()
            for part in sample.parts
        }

    def draw(self, rng: random.Random) -> tuple[str, str, int]:
        image = rng.choice(list(self._samples))
        sample = self._samples[image]
        part = rng.choices(sample.parts, [part.share for part in sample.parts])[0]
        size, used = len(sample.files[part.file]), self._used[image, part.name]
        if rng.random() < 0.5 or not used:
            return image, part.file, _nth(part.ranges_in(size), rng.randrange(part.bytes_in(size)))
        return image, part.file, min(rng.choice(used) + rng.randrange(_UNIT_BYTES), size - 1)


def _used_units(data: bytes, part: Part) -> Iterator[int]:
    for first, count in part.ranges_in(len(data)):
        yield from (unit for unit in range(first, first + count, _UNIT_BYTES) if any(data[unit : unit + _UNIT_BYTES]))


def _nth(ranges: tuple[Range, ...], number: int) -> int:
    """Return the byte with a number, counted over ranges."""
    for first, count in ranges:
        if number < count:
            return first + number
        number -= count
    raise IndexError
