"""The benchmark of the server, beside redis."""
