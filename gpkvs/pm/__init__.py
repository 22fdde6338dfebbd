"""Persistent memory: mapped regions and what it takes to make stores to them durable."""
