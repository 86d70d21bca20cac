"""Tuning: the best settings of a model, found by trial on validation cases."""
