"""Studies: many models on the same data and the same questions, with the paper's tables built on top."""
