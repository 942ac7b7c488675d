"""Parallelism, applied to a finished model from outside: one file for each kind."""
