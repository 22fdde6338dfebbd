"""Clients that know what a server must answer; tests/fuzz_served.py lets them loose."""
