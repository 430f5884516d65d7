"""Gibbs sampling."""
