"""Archives: all that changes on a server in files, and a backup from time to time; a store is restored to any moment.

`segment` is a file of changes and its format, `recorder` the thread that follows a server into segments, `archiver`
what takes bases beside it and removes what is too old, `contents` what an archive holds, `moment` how a moment is
written, and `restore` makes a store as it was at one.
"""
