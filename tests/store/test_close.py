"""Closing a store while other threads wait for their batches."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import gpkvs
from gpkvs.engine.engine import Engine
from gpkvs.errors import StoreClosedError, StoreLockedError
from tests.conftest import SMALL


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_threads_that_wait_for_their_batch_get_its_result(store_path: Path, commit: str) -> None:
    for life in range(8):
        store = gpkvs.open(store_path, commit=commit, **SMALL)
        acknowledged: list[list[bytes]] = [[] for _ in range(4)]

        def write(number: int, keys: list[bytes], store: gpkvs.Store = store, life: int = life) -> None:
            for i in range(1000):
                key = b"%d-%d-%d" % (life, number, i)
                try:
                    store.set(key, key)
                except StoreClosedError:
                    return
                keys.append(key)

        threads = [threading.Thread(target=write, args=pair) for pair in enumerate(acknowledged)]
        for thread in threads:
            thread.start()
        while not all(acknowledged):
            pass
        store.close()
        for thread in threads:
            thread.join()
        with gpkvs.open(store_path) as again:
            for keys in acknowledged:
                assert [again.get(key) for key in keys] == keys


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_close_that_is_interrupted_keeps_the_lock_and_may_be_called_again(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    store = gpkvs.open(store_path, commit=commit, **SMALL)
    store.set(b"key", b"value")

    def interrupt(_: Engine) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "settle", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    with pytest.raises(StoreClosedError):
        store.get(b"key")
    with pytest.raises(StoreLockedError):
        gpkvs.open(store_path)
    store.close()
    with gpkvs.open(store_path) as again:
        store.close()  # once more: it gives back nothing that is another's by now
        with pytest.raises(StoreLockedError):
            gpkvs.open(store_path)
        assert again.get(b"key") == b"value"
