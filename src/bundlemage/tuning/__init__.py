"""Tuning: search for the best settings of a model, by trials on validation cases."""
