"""The FastAPI application: routes only."""
