"""Answers questions about one user or about all users: the shop, filters and ranking."""
