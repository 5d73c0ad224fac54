"""One pydantic model per endpoint: what a request may say, and nothing about what we make of it."""
