"""The gRPC server: RPC handlers -> queue -> the store's engine, one transaction a batch.

gRPC reads its environment when it is loaded, which a module of this package does: what it must find there is set here.
"""

import os

# The only TLS 1.2 suite left needs a key that both sides share, and there is none: 1.3, whose suites are others, is all
# that remains. gRPC has no other way to say so.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
# A line for each handshake that fails would let anybody fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
