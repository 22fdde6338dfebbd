"""Commands that move or verify data: export, import, backup, archive, restoration, copies, checks."""
