"""Scores, comparisons and pictures of results."""
