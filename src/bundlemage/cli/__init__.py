"""The command line. Modules that are slow to import are imported only by the commands that need them."""
