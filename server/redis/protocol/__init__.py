"""What comes and goes over the Redis protocol: words, patterns, replies, errors."""
