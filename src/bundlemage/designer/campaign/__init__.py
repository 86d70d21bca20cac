"""Bundles for everyone, worth most together, under limits that all share."""
