"""Engines: where work runs. One interface, on this machine or on a Ray cluster."""
