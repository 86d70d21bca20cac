"""Bundles for many people under shared limits, and the audience of a bundle."""
