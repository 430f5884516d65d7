"""The family as PyMC models: distributions, builders, steps."""
