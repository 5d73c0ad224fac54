"""Programs that share limits with each other; run as modules."""
