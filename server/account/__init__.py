"""One account of the memory that clients make the server take, and the bounds that follow from it."""
