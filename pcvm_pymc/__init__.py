"""Sparse Bayesian kernel classifiers for PyMC."""

__version__ = "0.1.0"
