"""What a connection has said of itself, what it has subscribed to, and who tells it of changes."""
