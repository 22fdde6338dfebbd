"""Commands that cause crashes and damage on purpose, and judge what is left."""
