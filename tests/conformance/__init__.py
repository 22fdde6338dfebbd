"""Suites of others, run against a gpkvs server: `make conformance`."""
