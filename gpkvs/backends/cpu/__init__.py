"""The kernels on the CPU."""
