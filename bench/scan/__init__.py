"""gpkvs bench scan: all keys and records of a table, beside a cursor of LMDB."""
