"""Closing a store while other threads wait for their batches."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import gpkvs
from gpkvs.errors import StoreClosedError
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
