"""`gpkvs consistency`: the responses to concurrent clients must be strictly serializable."""
