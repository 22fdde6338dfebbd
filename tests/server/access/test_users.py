"""The file of users: what it says, and what is refused."""

from __future__ import annotations

import hashlib
import os
import time
import tomllib
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpkvs.server.access.patterns import Patterns
from gpkvs.server.access.users import (
    TOKEN_PREFIX,
    User,
    Users,
    UsersError,
    certificate_name,
    load_users,
    make_token,
    parse_token,
)

HASH = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHRzb21lc2FsdA$RdescudvJCsgt3ub+b4dWRWJTmaaJObGRdescudvJCs"
SHA256 = "5ec2e7" * 10 + "5ec2"
SECRET = "hunter2-5ec2e7"
TIMES = "created = 2026-11-22T10:00:00Z\nends = 2027-02-20T12:00:00+02:00\n"
TOKEN = f'[users.alice.tokens.3f9a0c12]\nsha256 = "{SHA256}"\n{TIMES}'

WHOLE = f"""
# Users of a gpkvs server.
[users.alice]
password = "{HASH}"
certificates = ["DNS:Alice.Example", "URI:spiffe://example/Alice", "IP:2001:DB8::0001", "EMAIL:Alice@example"]
read = ["*"]
write = ["orders", "orders.*"]
metrics = true

{TOKEN}note = "ci"

[users.bob]
admin = ["*"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    path.touch(0o600)
    return path


def load(file: Path, text: str) -> Users:
    file.write_text(text)
    return load_users(file)


def test_a_file(file: Path) -> None:
    users = load(file, WHOLE)
    alice, bob = users.by_name.values()
    assert (alice.name, bob.name) == ("alice", "bob")
    assert alice.password == HASH
    assert users.by_certificate == dict.fromkeys(
        ("DNS:alice.example", "URI:spiffe://example/Alice", "IP:2001:db8::1", "EMAIL:Alice@example"), alice
    )
    found = users.token("3f9a0c12")
    assert found is not None
    assert found[0] is alice
    assert (found[1].sha256, found[1].note) == (bytes.fromhex(SHA256), "ci")
    assert found[1].ends == datetime(2027, 2, 20, 10, tzinfo=UTC)
    assert users.token("00000000") is None
    rights = alice.rights
    assert rights.may_read("any")
    assert rights.may_write("orders.2")
    assert not rights.may_write("orders2")
    assert not rights.may_admin("orders")
    assert rights.metrics
    assert not rights.admin_everywhere
    assert (bob.password, bob.certificates, bob.tokens) == (None, (), {})
    assert bob.rights.admin_everywhere
    assert not bob.rights.metrics
    assert not bob.rights.may_read("any")


def test_an_empty_name_is_the_default_table(file: Path) -> None:
    rights = load(file, '[users.a]\nread = ["default"]\nwrite = ["defaul*"]\nadmin = ["orders"]').by_name["a"].rights
    assert rights.may_read("")
    assert rights.may_write("")
    assert not rights.may_admin("")


def test_users_are_equal_if_nothing_of_them_has_changed(file: Path) -> None:
    first, again = load(file, WHOLE), load(file, WHOLE)
    assert first.by_name["alice"].rights.may_read("orders")  # what is remembered does not count
    assert again.by_name == first.by_name
    assert load(file, WHOLE.replace('"orders", ', "")).by_name["alice"] != first.by_name["alice"]


def test_nobody(file: Path) -> None:
    assert load(file, "[users]\n").by_name == {}


REFUSED = {
    "empty": ("", "it has no [users]"),
    "no TOML": (f'[users.alice]\npassword = "{SECRET}', "it is not TOML: "),
    "a table twice": ("[users.alice]\n[users.alice]", "it is not TOML: "),
    "a field twice": (f'[users.alice]\npassword = "{SECRET}"\npassword = "{SECRET}"', "it is not TOML: "),
    "a long number": (f"[users.alice]\nmetrics = {'9' * 5000}", "it is not TOML: "),
    "nested": ("[users]\na = " + "[" * 100_000, "it is nested too deeply"),
    "users no table": (f'users = "{SECRET}"', "users: it has to be a table"),
    "unknown table": (f'secret = "{SECRET}"\n[users]', "'secret': unknown; there are users"),
    "user no table": (f'[users]\nalice = "{SECRET}"', "user alice: it has to be a table"),
    "name": ('[users."a b"]', "user 'a b': a name has 1 to 64 of A-Z"),
    "empty name": ('[users.""]', "user '': a name has"),
    "name like an option": ("[users.-a]", "user '-a': a name has"),
    "name of another script": ('[users."\N{CYRILLIC SMALL LETTER A}lice"]', "a name has"),
    "name with a line end": ('[users."alice\\n"]', "a name has"),
    "long name": (f"[users.{'a' * 65}]", "a name has"),
    "unknown field": (f'[users.alice]\nsecret = "{SECRET}"', "user alice: 'secret': unknown; there are password, "),
    "password in clear": (f'[users.alice]\npassword = "{SECRET}"', "user alice: password: it has to be an argon2id"),
    "password no text": ("[users.alice]\npassword = 12345", "user alice: password: it has to be a text"),
    "other hash": ('[users.alice]\npassword = "$2b$12$5ec2e7"', "user alice: password: it has to be an argon2id"),
    "certificates no list": ('[users.alice]\ncertificates = "DNS:a"', "user alice: certificates: it has to be a list"),
    "certificates no texts": ("[users.alice]\ncertificates = [1]", "user alice: certificates: it has to be a list"),
    "common name": ('[users.alice]\ncertificates = ["CN:a"]', "user alice: certificates: 'CN:a': it has to be DNS:"),
    "no address": ('[users.alice]\ncertificates = ["IP:1.2.3"]', "user alice: certificates: 'IP:1.2.3': it has to be"),
    "certificate of two": (
        '[users.bob]\ncertificates = ["DNS:a"]\n[users.alice]\ncertificates = ["DNS:A"]',
        "user alice: certificates: 'DNS:a' is there twice; user bob has it too",
    ),
    "certificate twice": (
        '[users.alice]\ncertificates = ["IP:::1", "IP:0::1"]',
        "user alice: certificates: 'IP:::1' is there twice",
    ),
    "read no list": ('[users.alice]\nread = "*"', "user alice: read: it has to be a list of texts"),
    "write of numbers": ("[users.alice]\nwrite = [1]", "user alice: write: it has to be a list of texts"),
    "no pattern": ('[users.alice]\nadmin = ["Orders"]', "user alice: admin: no table's name matches 'Orders'"),
    "empty pattern": ('[users.alice]\nread = [""]', "user alice: read: no table's name matches ''"),
    "backup a text": ("[users.alice]\nbackup = 'yes'", "user alice: backup: it has to be true or false"),
    "metrics a number": ("[users.alice]\nmetrics = 1", "user alice: metrics: it has to be true or false"),
    "tokens no table": ("[users.alice]\ntokens = []", "user alice: tokens: it has to be a table"),
    "token no table": ("[users.alice.tokens]\n00000000 = 1", "user alice: tokens.00000000: it has to be a table"),
    "id of a token": ("[users.alice.tokens.3F9A0C12]", "user alice: tokens.'3F9A0C12': an id has 8 of 0-9 a-f"),
    "unknown in a token": (f'{TOKEN}secret = "{SECRET}"', "user alice: tokens.3f9a0c12.'secret': unknown; there are"),
    "token in clear": (
        TOKEN.replace(SHA256, f"gpkvs_3f9a0c12_{'5ec2e7' * 7}a"),
        "user alice: tokens.3f9a0c12.sha256: it has to be 64 of 0-9 a-f",
    ),
    "no hash": (TOKEN.replace("sha256", "#"), "user alice: tokens.3f9a0c12.sha256: missing"),
    "no end": (TOKEN.replace("ends", "#"), "user alice: tokens.3f9a0c12.ends: missing"),
    "no beginning": (TOKEN.replace("created", "#"), "user alice: tokens.3f9a0c12.created: missing"),
    "a day": (TOKEN.replace("T12:00:00+02:00", ""), "user alice: tokens.3f9a0c12.ends: it has to be a time"),
    "no zone": (TOKEN.replace("+02:00", ""), "user alice: tokens.3f9a0c12.ends: it has no time zone"),
    "no such time": (
        TOKEN.replace("2027-02-20T12:00:00+02:00", "9999-12-31T23:59:59-01:00"),
        "user alice: tokens.3f9a0c12.ends: it is not between",
    ),
    "note of lines": (f'{TOKEN}note = "a\\u001b[2J"', "user alice: tokens.3f9a0c12.note: it has to be one line"),
    "token of two": (
        f"{TOKEN.replace('alice', 'bob')}{TOKEN}",
        "user alice: tokens: '3f9a0c12' is there twice; user bob has it too",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(file: Path, text: str, message: str) -> None:
    with pytest.raises(UsersError) as refused:
        load(file, text)
    assert str(refused.value).startswith(f"{file}: ")
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "5ec2e7" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("argon2id", "argon2i"),
        ("v=19", "v=16"),
        ("m=65536", "m=0"),
        ("m=65536", "m=31"),  # less than 8 for each lane
        ("m=65536", "m=4194304"),
        ("m=65536", "m=٦٥٥٣٦"),
        ("t=3", "t=4294967295"),
        ("p=4", "p=65"),
        ("$c29tZXNhbHRzb21lc2FsdA", "$c29t"),  # a salt of 3 bytes
        ("$RdescudvJCsgt3ub+b4dWRWJTmaaJObGRdescudvJCs", "$RdescudvJCs"),
        ("udvJCs", "udvJCt"),  # bits that stand for nothing
        ("udvJCs", "udvJ="),
        ("udvJCs", "udvJCs\\n"),
    ],
)
def test_hashes_that_are_refused(file: Path, old: str, new: str) -> None:
    turned = HASH[::-1].replace(old[::-1], new[::-1], 1)[::-1]  # the last one that is there
    assert turned != HASH
    with pytest.raises(UsersError, match="user alice: password: it has to be an argon2id hash"):
        load(file, f'[users.alice]\npassword = "{turned}"')


def test_bytes_that_are_no_text(file: Path) -> None:
    file.write_bytes(b'[users]\n"\xff"')
    with pytest.raises(UsersError, match=r"users.toml: byte 9 is not UTF-8"):
        load_users(file)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620, 0o644, 0o666])
def test_others_may_neither_read_nor_change_it(file: Path, mode: int) -> None:
    file.write_text("[users]")
    file.chmod(mode)
    with pytest.raises(UsersError, match=rf"its mode {mode:04o} lets others .*: chmod 600 "):
        load_users(file)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o440])
def test_a_group_may_read_it(file: Path, mode: int) -> None:
    file.write_text("[users]")
    file.chmod(mode)
    assert load_users(file).by_name == {}


def test_a_link_counts_as_what_it_leads_to(file: Path, tmp_path: Path) -> None:
    file.write_text("[users]")
    link = tmp_path / "link"
    link.symlink_to(file)
    assert load_users(link).by_name == {}
    file.chmod(0o644)
    with pytest.raises(UsersError, match="chmod"):
        load_users(link)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsersError, match=r"no\.toml: No such file or directory: restore it from a backup"):
        load_users(tmp_path / "no.toml")


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_no_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    path.mkdir(0o700) if kind == "directory" else os.mkfifo(path, 0o600)
    with pytest.raises(UsersError, match=r"not a regular file|Is a directory"):
        load_users(path)


_TOML = st.recursive(
    st.sampled_from(["1", "true", "''", "'*'", f"'{HASH}'", f"'{SHA256}'", "2026-11-22T10:00:00Z", "0001-01-01"])
    | st.text("'[]{}=.,\n a", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(
            st.sampled_from(["users", "tokens", "alice", "3f9a0c12", "password", "read", "sha256", "created", "ends"]),
            inner,
            max_size=4,
        ).map(lambda items: f"{{{', '.join(f'{key} = {value}' for key, value in items.items())}}}")
    ),
    max_leaves=12,
)


@given(user=_TOML)
def test_any_file_is_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, user: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.touch(0o600)
    try:
        found = load(path, f"[users]\nalice = {user}")
    except UsersError:
        return
    assert set(found.by_name) == set(tomllib.loads(path.read_text())["users"])


def test_neither_hash_stands_in_a_representation(file: Path) -> None:
    users = load(file, WHOLE)
    assert HASH not in repr(users.by_name)
    assert repr(bytes.fromhex(SHA256)) not in repr(users.by_name)
    assert SHA256 not in repr(users.by_name)


def test_a_file_of_many_users(file: Path) -> None:
    users = [
        f'[users.user{n}]\npassword = "{HASH}"\nread = ["user{n}.*"]\n'
        f'[users.user{n}.tokens.{n:08x}]\nsha256 = "{SHA256}"\n{TIMES}'
        for n in range(4000)
    ]
    file.write_text("".join(users))
    began = time.thread_time()
    found = load_users(file)
    assert time.thread_time() - began < 4  # on a slow machine; 10,000 users take less than a second
    assert len(found.by_name) == 4000
    assert found.token(f"{3999:08x}")[0].name == "user3999"  # type: ignore[index]


@given(st.lists(st.text("ab.*", min_size=1, max_size=7), max_size=3), st.text("ab.", max_size=9))
@example(["a*a"], "a")
def test_patterns_match_as_file_names_do(texts: list[str], name: str) -> None:
    patterns = Patterns(tuple(texts))
    expected = any(fnmatchcase(name, text) for text in texts)
    assert patterns.match(name) == expected
    assert patterns.match(name) == expected  # remembered
    assert patterns.everywhere == any(set(text) == {"*"} for text in texts)


def test_a_pattern_is_no_regular_expression_and_no_prefix() -> None:
    patterns = Patterns(("orders", "a.b", "x*y*z"))
    assert [patterns.match(name) for name in ("orders", "a.b", "xyz", "x-y-z")] == [True] * 4
    assert [patterns.match(name) for name in ("orders2", "order", "aab", "xz", "xyzz.", "", "*")] == [False] * 7


def test_patterns_remember_so_much() -> None:
    patterns = Patterns(("*a*a*a*a*a*a*a*a*b",))
    began = time.thread_time()
    assert not patterns.match("a" * 1_000_000)
    for number in range(5000):
        assert not patterns.match(f"t{number}")
    assert time.thread_time() - began < 5
    assert len(patterns._known) <= 1024
    assert max(map(len, patterns._known)) <= 64


def test_tokens() -> None:
    text, token_id, sha256 = make_token()
    assert text.startswith(f"{TOKEN_PREFIX}{token_id}_")
    assert len(text) == len("gpkvs_3f9a0c12_") + 43
    assert sha256 == hashlib.sha256(text.encode()).digest()
    assert parse_token(text) == (token_id, sha256)
    assert len({make_token()[0] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpkvs_",
        "gpkvs_3f9a0c12_",
        "gpkvs_3F9A0C12_" + "a" * 43,
        "gpkvs_3f9a0c12_" + "a" * 42,
        "gpkvs_3f9a0c12_" + "a" * 44,
        "gpkvs_3f9a0c12_" + "a" * 43 + "\n",
        "gpkvs_3f9a0c12_" + "é" * 43,
        "\ud800" * 58,
        "GPKVS_3f9a0c12_" + "a" * 43,
    ],
)
def test_what_is_no_token(text: str) -> None:
    assert parse_token(text) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DNS:A.Example", "DNS:a.example"),
        ("DNS:", None),
        ("dns:a", None),
        ("DNS: a", None),
        ("DNS:a\n", None),
        ("IP:127.0.0.1", "IP:127.0.0.1"),
        ("IP:127.0.0.1/8", None),
        ("IP:2001:DB8:0::1", "IP:2001:db8::1"),
        ("URI:spiffe://A/b", "URI:spiffe://A/b"),
        ("EMAIL:A@b", "EMAIL:A@b"),
        ("a.example", None),
    ],
)
def test_names_of_certificates(text: str, name: str | None) -> None:
    assert certificate_name(text) == name
    assert name is None or certificate_name(name) == name


def test_a_user_without_a_credential_is_a_user(file: Path) -> None:
    user = load(file, "[users.a]").by_name["a"]
    assert user == User("a", None, (), {}, user.rights)
    assert not user.rights.may_read("default")
