"""Programs that test gpkvs for as long as one likes: fuzzers, loaded runs, the night."""
