"""A client of TLS that does nothing but change its keys, by OpenSSL itself: Python's own module cannot."""

from __future__ import annotations

import ctypes
import ctypes.util
import select
import socket
import threading
from dataclasses import dataclass

_ALPN = b"\x02h2"
_KEY_UPDATE_REQUESTED = 1  # the server is to change its own too
_CLEAR_MODE, _AUTO_RETRY = 78, 4  # reading returns after one record, whatever it is
_WANT_READ = 2
_CHANGES = 50  # between two looks at what the server sent


@dataclass
class Done:
    """What a hostile client did."""

    connections: int = 0
    closed: int = 0  # by the server
    sent_bytes: int = 0
    received_bytes: int = 0
    processor: float = 0.0  # how much of one it took


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(ctypes.util.find_library("ssl"))
    for name, result in (("TLS_client_method", ctypes.c_void_p), ("SSL_CTX_new", ctypes.c_void_p)):
        getattr(library, name).restype = result
    library.SSL_new.restype = ctypes.c_void_p
    library.SSL_ctrl.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p
    return library


def change_keys(address: tuple[str, int], done: Done, stop: threading.Event) -> None:
    """Change the keys of one connection until it is enough; take another one where the server has closed it."""
    library = _library()
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    while not stop.is_set():
        with socket.create_connection(address) as connection:
            ssl = ctypes.c_void_p(library.SSL_new(context))
            library.SSL_set_alpn_protos(ssl, _ALPN, len(_ALPN))
            library.SSL_ctrl(ssl, _CLEAR_MODE, _AUTO_RETRY, None)
            library.SSL_set_fd(ssl, connection.fileno())
            library.ERR_clear_error()
            if library.SSL_connect(ssl) == 1:
                done.connections += 1
                _change_until_closed(library, ssl, connection, done, stop)
            library.SSL_free(ssl)


def _change_until_closed(
    library: ctypes.CDLL, ssl: ctypes.c_void_p, connection: socket.socket, done: Done, stop: threading.Event
) -> None:
    room = ctypes.create_string_buffer(1 << 16)
    while not stop.is_set():
        for _ in range(_CHANGES):
            library.SSL_key_update(ssl, _KEY_UPDATE_REQUESTED)
            if library.SSL_do_handshake(ssl) != 1:
                done.closed += 1
                return
        # A record behind each: five bytes of a head, a message of five, its kind, and the tag.
        done.sent_bytes += _CHANGES * 27
        while select.select([connection], [], [], 0)[0]:
            received = library.SSL_read(ssl, room, len(room))
            if received <= 0 and library.SSL_get_error(ssl, received) != _WANT_READ:
                done.closed += 1
                return
            done.received_bytes += max(received, 0)
