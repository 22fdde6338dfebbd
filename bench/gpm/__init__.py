"""`gpkvs bench gpm`: the library gpkvs.gpm against measured limits, and the workloads of GPM's suite."""
