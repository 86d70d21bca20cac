"""Training: the one loop, its batches, checkpoints and history."""
