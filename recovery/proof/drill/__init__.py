"""`gpkvs drill`: a server is killed under load, and nothing acknowledged may be missing."""
