"""Training: the loop, its batches, checkpoints and history."""
