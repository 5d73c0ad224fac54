"""One `Dialect` per API family."""
