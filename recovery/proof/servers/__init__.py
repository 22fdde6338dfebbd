"""Server processes that a drill starts and kills."""
