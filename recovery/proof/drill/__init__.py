"""`gpkvs drill`: kill a server under load, and see that no acknowledged write is lost."""
