"""What each command does: a file for each kind, which adds its commands to the table."""
