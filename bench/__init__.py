"""Benchmarks of the engine and of the server, beside other stores with the same promise."""
