"""Composition roots beyond one process."""
