"""The benchmark of a store on a disk: its journal, beside stores that sync as well."""
