"""Rivals, one file for each family of models."""
