"""One module per claim; see `bench.scenario`."""
