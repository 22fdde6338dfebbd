"""Benchmarks of single calls and streams on the wire: the doors of `gpkvs serve` beside servers that do nothing."""
