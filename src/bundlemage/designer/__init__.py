"""Bundles that a shop can really sell: designed, explained, and with an audience foretold."""
