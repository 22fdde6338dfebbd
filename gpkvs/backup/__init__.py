"""Backups: a store copied while it is used, as it was at one position of its changes (docs/design.md, "Live backup").

`copier` has the steps, `source` what is copied, `place` where it is made, `spill` the changes that wait in a file,
`reader` the thread that reads them, `filled` the store that is filled, `manifest` what a backup says of itself, and
`kept` the folder of the last ones.
"""
