"""The requests and answers of the live service. The service and its client use the same classes."""
