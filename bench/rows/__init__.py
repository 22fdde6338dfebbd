"""The benchmark of rows: many arrays of one type and shape a call, beside peers that promise the same, and NumPy."""
