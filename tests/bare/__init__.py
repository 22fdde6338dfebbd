"""What gpkvs needs of a machine, tried on a Debian that has nothing else."""
