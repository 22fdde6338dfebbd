"""`gpkvs bitflip`: a damaged store is refused, or served with correct values only."""
