"""The whole way of a stream's bytes, from an engine's connection to a client's, moved by hand."""
