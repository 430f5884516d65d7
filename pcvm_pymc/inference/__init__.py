"""From a model to results."""
