"""What a store holds besides its files: tables, the heap's space, blobs. No room of the engine lies below."""
