"""The benchmark of operations that look before they act: conditions, increments, appends."""
