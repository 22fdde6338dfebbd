"""The asynchronous classes are what their blocking twins make them, but for what is their own."""

from __future__ import annotations

from pathlib import Path

from tools.async_faces import ASYNC_FACE, FACE, TWINS, made

REPOSITORY = Path(__file__).parents[2]


def test_a_signature_and_a_body_are_made_anew() -> None:
    texts = {path: (REPOSITORY / path).read_text() for path in (FACE, ASYNC_FACE)}
    whole = texts[ASYNC_FACE]
    for one, other in (
        ("async def exists(self, key: Key,", "async def exists(self, key: Bytes,"),
        ("sizes += await self._read_into(", "sizes = await self._read_into("),
        ("    @abstractmethod\n    async def count(", "    async def count("),
    ):
        assert one in whole
        texts[ASYNC_FACE] = whole.replace(one, other, 1)
        assert one in made(TWINS[0], texts)


def test_a_docstring_and_a_body_of_its_own_stay() -> None:
    texts = {path: (REPOSITORY / path).read_text() for path in (FACE, ASYNC_FACE)}
    for one in ("errors as `get`.", "value: bytes | None = await self._on_key(Op.GET, key, table, timeout)"):
        texts[ASYNC_FACE] = texts[ASYNC_FACE].replace(one, one + "  # its own", 1)
    before = texts[ASYNC_FACE].count("# its own")
    assert before == 2
    assert made(TWINS[0], texts).count("# its own") == before
