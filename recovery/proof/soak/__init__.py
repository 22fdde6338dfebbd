"""`gpkvs soak`: a nearly full server under load for a long time, killed and not, which must stay right and not grow."""
