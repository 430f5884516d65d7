"""Estimation, sampling and prediction for PyMC models, and their results."""
