"""The decision core in virtual time: the same admission, scheduling, routing and dispatch rules that
serve requests, driven against a model of an engine instead of an engine. Exact, seeded, single-threaded.
"""
