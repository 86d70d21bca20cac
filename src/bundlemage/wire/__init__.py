"""The types that go over the wire. The service and its client both use them."""
