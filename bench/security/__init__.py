"""Benchmarks of what TLS and logins cost."""
