"""Where a request runs: replica snapshots, health, policies."""
