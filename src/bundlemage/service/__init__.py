"""The live service: an HTTP API and web pages that use a store and a model."""
