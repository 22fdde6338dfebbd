"""The benchmarks of the GPU backend."""
