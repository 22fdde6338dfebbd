"""Addresses, files of TLS, and the port of the metrics."""
