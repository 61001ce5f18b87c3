"""A sweep as Slurm job arrays: what a login node does, and what an element of an array does."""
