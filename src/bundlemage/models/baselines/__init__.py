"""Rivals, one file a model."""
