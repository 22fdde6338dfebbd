"""The native door: C++ serves what is plain; Python serves the rest, with the same handlers as behind grpcio."""
