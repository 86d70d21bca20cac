"""The database of the live service. Only this package contains SQL."""
