"""Signs of life: metrics, logs, the slow log, what is watched."""
