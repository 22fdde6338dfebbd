"""Commands that cause crashes and damage on purpose, and judge the stores that are left."""
