"""Wires the siblings together: submit, dispatch, handles, drain."""
