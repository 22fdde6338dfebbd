"""`gpkvs crash`: the states that a power failure can leave, from a trace of the real kernels, each one recovered."""
