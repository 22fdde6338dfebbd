"""Batches as durable transactions: planners, the committer, the heap, tables."""
