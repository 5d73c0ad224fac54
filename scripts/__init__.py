"""Programs for development. A package only so that tests can import what they are made of."""
