"""Bytes on the wire: request schemas, server-sent events, and a dialect per API family."""
