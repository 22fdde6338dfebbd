"""The wire contract: messages and stubs generated from the .proto files, and the metadata keys beside them."""
