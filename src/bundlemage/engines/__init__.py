"""Engines run jobs on this machine or on a Ray cluster, with one interface for both."""
