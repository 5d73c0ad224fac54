"""Metrics, logs and GPU telemetry: implements `core.events.Events`."""
