"""Training jobs to measure. Nothing in here knows of the harness or of Horovod."""
