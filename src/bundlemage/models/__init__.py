"""Models, their losses and their settings. Nothing here reads a file or runs an optimiser."""
