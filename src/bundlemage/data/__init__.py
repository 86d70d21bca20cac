"""Data sets, their splits, and folders that hold data. Nothing here imports torch."""
