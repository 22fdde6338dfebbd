"""How a command runs: its keys are read, it runs over them, and what it wrote is stored in one guarded request."""
