"""Routing policies, one per file."""
