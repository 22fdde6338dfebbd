"""Server processes that live and die in a drill."""
