"""The gRPC server: RPC handlers -> batcher -> the store's engine, one transaction a batch."""
