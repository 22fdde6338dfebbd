"""Benchmarks of GPUs, and of the library and the papers beneath."""
