"""The live service: an HTTP API and a page over a store and a model."""
