"""The native engine: its turns, its crew, and requests of this process."""
