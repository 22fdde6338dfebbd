"""A load generator that speaks YCSB: its property names, its workloads, its output lines.

`workload` says what is done, `generators` which records, `runner` does it, `measurements` and `report` say how it went.
"""
