"""Clients of gRPC that nobody here wrote, each a program that does the same calls and prints what came of them."""
