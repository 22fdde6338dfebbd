"""`gpkvs bench scan`: how fast a table is read from end to end."""
