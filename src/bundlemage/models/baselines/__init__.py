"""Baseline models for comparison, one file for each family of models."""
