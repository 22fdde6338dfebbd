"""The benchmark of large values: 256 KiB and more, beside peers that promise the same, and beside what moves bytes."""
