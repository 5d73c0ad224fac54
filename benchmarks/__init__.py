"""Measurements of the project against other programs. Run from a checkout, never installed."""
