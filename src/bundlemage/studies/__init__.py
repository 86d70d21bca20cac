"""Studies compare many models on the same data and test cases, and reproduce the paper's tables."""
