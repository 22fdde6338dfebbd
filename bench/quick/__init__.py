"""The quick benchmark: what this machine does, in a minute."""
