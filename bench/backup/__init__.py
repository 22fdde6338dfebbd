"""Backups of a store that is used, beside redis."""
