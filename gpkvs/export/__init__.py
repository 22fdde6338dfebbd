"""Exports: files with the records of a table, for other programs and other stores (docs/export.md).

`file_format` says what is in one, `writer` makes one so that it may be interrupted, `reader` checks and reads one,
`parquet` and `parquet_reader` write and read the other form.
"""
