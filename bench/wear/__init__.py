"""gpkvs bench wear: a store that is overwritten again and again, nearly full, beside stores that collect garbage."""
