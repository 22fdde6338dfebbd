"""The bytes on media: layouts, roots, the catalogue, the directory and files of a store, the transaction flag."""
