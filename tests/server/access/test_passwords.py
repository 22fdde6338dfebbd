"""Passwords: hashed, verified two at a time, remembered for some minutes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from argon2.low_level import Type, hash_secret

from gpkvs.errors import InvalidArgumentError
from gpkvs.server.access import passwords as module
from gpkvs.server.access.passwords import PASSWORD_BYTES_MAX, Passwords, PasswordsBusyError, hash_password
from gpkvs.server.access.users import Rights, User

PASSWORD = "correct horse"


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def user_of(password: bytes, name: str = "alice") -> User:
    """Return a user whose password is quick to verify."""
    hashed = hash_secret(password, b"saltsalt", time_cost=1, memory_cost=8, parallelism=1, hash_len=16, type=Type.ID)
    return User(name, hashed.decode(), (), {}, Rights())


ALICE = user_of(PASSWORD.encode())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def passwords(clock: Clock) -> Iterator[Passwords]:
    made = Passwords(clock)
    yield made
    made.close()


class Checks:
    """Stands for argon2: it says what was verified, and waits until it may go on."""

    def __init__(self) -> None:
        self.hashes: list[str] = []
        self.go_on = threading.Event()
        self._begun = threading.Semaphore(0)
        self.under_way = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, hashed: str, secret: bytes) -> bool:
        with self._lock:
            self.hashes.append(hashed)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        self._begun.release()
        assert self.go_on.wait(30)
        with self._lock:
            self.under_way -= 1
        return secret == PASSWORD.encode()

    async def begun(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self._begun.acquire, timeout=30)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Checks]:
    made = Checks()
    monkeypatch.setattr(module, "_is_right", made)
    yield made
    made.go_on.set()


def verify(passwords: Passwords, password: str, user: User | None = ALICE) -> bool:
    return asyncio.run(passwords.verify(user, user.name if user else "nobody", password))


def test_a_password_of_the_file(passwords: Passwords) -> None:
    hashed = hash_password(PASSWORD)
    assert hashed.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    user = replace(ALICE, password=hashed)
    assert verify(passwords, PASSWORD, user)
    assert not verify(passwords, PASSWORD + " ", user)
    assert hash_password(PASSWORD) != hashed


@pytest.mark.parametrize("secret", [b"\0", b"a\0b", b"\xff\xfe", "é漢".encode(), b":", b"x" * PASSWORD_BYTES_MAX])
def test_a_password_has_any_bytes(passwords: Passwords, secret: bytes) -> None:
    user, text = user_of(secret), secret.decode(errors="surrogateescape")
    assert verify(passwords, text, user)
    assert passwords.known(user, text)
    assert not verify(passwords, text[:-1] + "a", user)
    assert not verify(passwords, f"{text}\0", user)


@pytest.mark.parametrize(
    "text", ["", "x" * (PASSWORD_BYTES_MAX + 1), "é" * 513, "\ud800"], ids=["empty", "long", "bytes", "surrogate"]
)
def test_what_is_no_password(passwords: Passwords, checks: Checks, text: str) -> None:
    assert not verify(passwords, text)
    assert not passwords.known(ALICE, text)
    assert checks.hashes == []
    with pytest.raises(
        InvalidArgumentError, match="password: at least 8 characters are needed, and 1024 bytes are allowed"
    ):
        hash_password(text)


def test_a_new_password_has_eight_characters(passwords: Passwords) -> None:
    """An old one counts as long as it stands in the file."""
    with pytest.raises(InvalidArgumentError, match="at least 8 characters"):
        hash_password("hunter2")
    assert verify(passwords, "hunter2", user_of(b"hunter2"))


def test_a_right_password_is_known_while_it_is_used(passwords: Passwords, clock: Clock, checks: Checks) -> None:
    checks.go_on.set()
    assert not passwords.known(ALICE, PASSWORD)
    assert verify(passwords, PASSWORD)
    for _ in range(5):
        clock.now += 299
        assert passwords.known(ALICE, PASSWORD)
    assert verify(passwords, PASSWORD)
    assert len(checks.hashes) == 1
    clock.now += 300
    assert not passwords.known(ALICE, PASSWORD)
    assert verify(passwords, PASSWORD)
    assert len(checks.hashes) == 2


def test_a_wrong_password_is_never_known(passwords: Passwords, checks: Checks) -> None:
    checks.go_on.set()
    assert not verify(passwords, "wrong")
    assert not passwords.known(ALICE, "wrong")
    assert not verify(passwords, "wrong")
    assert len(checks.hashes) == 2


def test_a_known_password_is_known_for_its_hash_and_its_user_alone(passwords: Passwords) -> None:
    assert verify(passwords, PASSWORD)
    changed = replace(ALICE, password=hash_password("another one"))
    assert not passwords.known(changed, PASSWORD)
    assert not passwords.known(replace(ALICE, password=None), PASSWORD)
    assert not passwords.known(replace(ALICE, name="bob"), PASSWORD)
    assert not passwords.known(None, PASSWORD)
    assert not passwords.known(ALICE, PASSWORD + "\0")
    assert passwords.known(ALICE, PASSWORD)
    assert not Passwords().known(ALICE, PASSWORD)


def test_so_many_passwords_are_known(passwords: Passwords, checks: Checks) -> None:
    checks.go_on.set()

    async def main() -> None:
        for number in range(1100):
            await passwords.verify(replace(ALICE, name=f"user{number}"), f"user{number}", PASSWORD)

    asyncio.run(main())
    assert len(passwords._known) == 1024
    assert passwords.known(replace(ALICE, name="user1099"), PASSWORD)
    assert not passwords.known(replace(ALICE, name="user0"), PASSWORD)


def test_what_is_known_cannot_be_read_from_memory(passwords: Passwords) -> None:
    assert verify(passwords, PASSWORD)
    assert PASSWORD not in repr(vars(passwords))


@pytest.mark.parametrize("user", [None, replace(ALICE, password=None)], ids=["unknown", "without a password"])
def test_no_user_costs_as_much_as_a_user(passwords: Passwords, checks: Checks, user: User | None) -> None:
    checks.go_on.set()
    assert not verify(passwords, "wrong", user)
    usual = hash_password(PASSWORD)
    assert [_cost(hashed) for hashed in checks.hashes] == [_cost(usual)]
    assert Passwords()._hash_of(None) not in checks.hashes  # nobody knows its bytes before the process starts


def _cost(hashed: str) -> list[str | int]:
    kind, version, parameters, salt, digest = hashed.split("$")[1:]
    return [kind, version, parameters, len(salt), len(digest)]


def test_the_hash_of_nobody_can_be_verified(passwords: Passwords) -> None:
    assert not verify(passwords, PASSWORD, None)


def test_two_are_verified_at_a_time_and_so_many_wait(passwords: Passwords, checks: Checks) -> None:
    async def main() -> list[bool]:
        calls = [asyncio.ensure_future(passwords.verify(ALICE, "alice", f"wrong {number}")) for number in range(63)]
        calls.append(asyncio.ensure_future(passwords.verify(ALICE, "alice", PASSWORD)))
        await checks.begun(2)
        with pytest.raises(PasswordsBusyError, match="try again"):
            await passwords.verify(ALICE, "alice", "one more")
        checks.go_on.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [False] * 63 + [True]
    assert checks.most == 2
    assert len(checks.hashes) == 64
    assert passwords.known(ALICE, PASSWORD)


def test_calls_with_one_password_wait_for_one_verification(passwords: Passwords, checks: Checks) -> None:
    async def main() -> list[bool]:
        calls = [asyncio.ensure_future(passwords.verify(ALICE, "alice", PASSWORD)) for _ in range(500)]
        await checks.begun(1)
        calls[0].cancel()
        await asyncio.sleep(0)
        checks.go_on.set()
        return await asyncio.gather(*calls[1:])

    assert asyncio.run(main()) == [True] * 499
    assert len(checks.hashes) == 1


def test_a_verification_without_memory_is_no_wrong_password(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    import argon2.low_level  # noqa: PLC0415 - the module takes it when it is called
    from argon2.exceptions import VerificationError  # noqa: PLC0415

    def fail(*_: object) -> bool:
        raise VerificationError("Memory allocation error")

    monkeypatch.setattr(argon2.low_level, "verify_secret", fail)
    with pytest.raises(PasswordsBusyError, match="cannot be verified now: Memory allocation error"):
        verify(passwords, PASSWORD)
