"""Benchmarks of the Redis protocol: `gpkvs serve --resp` beside a real redis-server."""
