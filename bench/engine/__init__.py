"""The benchmark of the engine, embedded."""
