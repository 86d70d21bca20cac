"""Evaluation: what a model is asked, and how its answers are counted."""
