"""Version 1 of the wire contract."""
