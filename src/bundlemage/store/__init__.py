"""What the live service remembers. Nothing outside this package knows SQL."""
