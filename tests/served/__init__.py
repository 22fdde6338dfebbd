"""Clients that know what a server must answer; tests/tools/fuzz_served.py lets them loose."""
