"""Commands on the keys and tables of a server."""
