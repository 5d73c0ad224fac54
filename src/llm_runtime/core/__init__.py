"""What every package shares: requests, outcomes, errors, leases, time. Standard library only."""
