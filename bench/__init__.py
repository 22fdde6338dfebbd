"""Benchmarks of the engine and of the server, beside other stores that give the same promise."""
