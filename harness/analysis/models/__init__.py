"""Scaling models: laws fitted to curves, and a mechanism built of measured parts."""
