"""A fitted model as a folder, and its card."""
