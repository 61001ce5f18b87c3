"""What is measured of a running engine. Knows the engine contract, and no engine or workload."""
