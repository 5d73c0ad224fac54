"""Helpers shared by tests: real servers on real sockets, small clients."""
