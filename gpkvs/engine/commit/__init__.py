"""How a batch becomes durable: the undo log, the journal, their growth, checkpoints."""
