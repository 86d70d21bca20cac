"""Designs bundles that satisfy the rules of a request, and explains answers."""
