"""What figures mean, figures of whole answer lists, and figures of slices of the test cases."""
