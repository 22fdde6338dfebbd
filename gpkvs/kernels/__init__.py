"""Kernel sources: CUDA C++, compiled for the CPU when the package is built and for a GPU at run time."""
