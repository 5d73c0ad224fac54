"""Engines: adapters behind one `Backend` seam, and the processes they manage."""
