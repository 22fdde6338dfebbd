"""The comparisons of GPM with its nine workloads: what persistence takes, and what bounds it."""
