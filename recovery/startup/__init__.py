"""What an opening and `gpkvs check` run: roll back, count, verify, salvage."""
