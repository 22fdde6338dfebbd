"""Benchmarks of stores in this process."""
