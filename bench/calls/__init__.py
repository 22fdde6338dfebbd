"""The benchmark of single calls to an embedded store."""
