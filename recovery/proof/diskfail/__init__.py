"""Power failures of an ordinary disk, under a store with a journal: any state that a crash may leave must recover."""
