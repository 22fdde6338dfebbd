"""The native door: C++ serves what is plain; Python serves the rest, with the handlers of gRPC's services."""
