"""How a batch is planned for a GPU: phase by phase, each a kernel of its own."""
