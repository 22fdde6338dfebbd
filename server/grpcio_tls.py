"""TLS of gRPC's own server, which asks at each handshake what is in force."""

from __future__ import annotations

import threading
import time

import grpc

from gpkvs.server.tls import Material, Tls

# Around the moment at which gRPC is given another configuration. What may not be disturbed takes microseconds.
_QUIET_SECONDS = 0.25
# A client that takes up a session shows no certificate again. What gRPC is given anew knows no older session.
_SESSION_SECONDS_MAX = 3600.0


class GrpcioTls:
    """Gives gRPC the newest files.

    Parameters
    ----------
    tls
        The files.
    """

    def __init__(self, tls: Tls) -> None:
        self._giving = threading.Lock()
        self._asks_clients = tls.files.client_ca is not None
        tls.give(self._take)
        self._given, self._given_at = self._configuration, time.monotonic() - _QUIET_SECONDS

    def _take(self, material: Material) -> None:
        self._configuration = grpc.ssl_server_certificate_configuration(
            [(material.key, material.cert)], material.client_ca
        )

    @property
    def credentials(self) -> grpc.ServerCredentials:
        """What gRPC makes its port of; with a client CA, every client must show its own certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._given,
            self._newest,
            require_client_authentication=self._asks_clients,
        )

    def _newest(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what gRPC is to make handshakes of, or None if it has that; called at each handshake, in its threads.

        gRPC exchanges the two without a lock, and frees the old one: a handshake that has just begun in another thread
        would use it still, and the process would end. So none begins a while before and after.
        """
        with self._giving:
            now = time.monotonic()
            is_old = self._asks_clients and now - self._given_at > _SESSION_SECONDS_MAX
            if self._given is self._configuration and not is_old:
                time.sleep(max(self._given_at + _QUIET_SECONDS - now, 0))
                return None
            time.sleep(_QUIET_SECONDS)
            self._given, self._given_at = self._configuration, time.monotonic()
            return self._given
