"""The kernels on an NVIDIA GPU: the only folder that imports CuPy."""
