"""Bundles for many users under shared limits, and the audience of a bundle."""
