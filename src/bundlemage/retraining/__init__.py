"""Trains a new model on the store's data, compares it with the serving model, and publishes it."""
