"""gpkvs bench growth: a small store that grows while keys are inserted, beside one made large, and beside redis."""
