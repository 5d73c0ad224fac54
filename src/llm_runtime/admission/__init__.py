"""Whether a request may enter: limits before anything is queued."""
