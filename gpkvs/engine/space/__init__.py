"""Space of the heap: it grows, is compacted, and goes back."""
