"""Readers: every published or everyday layout of bundle data, each to the same `BundleDataset`."""
