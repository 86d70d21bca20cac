"""The built-in sample shop, generated from a seed."""
