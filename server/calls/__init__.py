"""The calls that Python serves: their services, their requests, and how errors become statuses."""
