"""Small programs that behave as engines do on bad days; run by path."""
