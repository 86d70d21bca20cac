"""A new model from the store's data: compared with the serving one, and published if it is not worse."""
