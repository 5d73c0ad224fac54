"""LLM Runtime: an OpenAI-compatible serving runtime and gateway in front of any engine."""

__version__ = "0.1.0"
