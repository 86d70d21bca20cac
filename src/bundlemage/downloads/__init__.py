"""Downloads of public data sets."""
