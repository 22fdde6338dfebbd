"""`gpkvs crash --gpm`: the states that a power failure can leave of files of gpkvs.gpm, each one recovered."""
