"""A new model from what the store holds: compared with the one that serves, published if it is not worse."""
