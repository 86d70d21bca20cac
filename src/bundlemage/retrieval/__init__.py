"""The best of millions of bundles without a look at each: an index, and a guard over what it finds."""
