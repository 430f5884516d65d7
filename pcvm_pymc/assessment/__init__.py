"""Judging results."""
