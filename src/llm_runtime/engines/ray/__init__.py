"""Engines in Ray Serve replicas: seats for them here, the one engine and its service there.

Only `steering` and `link` import Ray; everything else runs, and is tested, without it.
"""
