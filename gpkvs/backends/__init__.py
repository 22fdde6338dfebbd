"""Where kernels run: one file for each backend, one protocol for all."""
