"""gpkvs serve, and what says how it would run here."""
