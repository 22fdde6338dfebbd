"""Tables of embeddings for PyTorch, whose rows lie in a store: a step of training is one durable transaction.

PyTorch is no dependency of gpkvs: it is needed only where this package is imported (docs/vectors.md).
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"gpkvs.torch needs PyTorch ({error}): run pip install torch") from error

from gpkvs.torch.embedding import EmbeddingTable
from gpkvs.torch.initial_rows import uniform, zeros
from gpkvs.torch.optimizers import SGD, Adagrad, Optimizer

__all__ = ["SGD", "Adagrad", "EmbeddingTable", "Optimizer", "uniform", "zeros"]
