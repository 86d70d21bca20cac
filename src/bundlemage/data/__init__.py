"""Data in, checked and frozen. Nothing here imports torch."""
