"""Models: what they compute and how they are configured. No file is opened, no optimiser stepped."""
