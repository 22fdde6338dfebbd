"""`gpkvs consistency`: what concurrent clients see must be strictly serializable."""
