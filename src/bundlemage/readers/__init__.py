"""Readers of published and common layouts of bundle data. All of them build a `BundleDataset`."""
