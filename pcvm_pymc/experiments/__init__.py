"""Data sets and experiments."""
