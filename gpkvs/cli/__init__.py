"""The gpkvs command: one file for each subcommand."""
