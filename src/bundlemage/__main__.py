"""Runs the command line with `python -m bundlemage`."""

from bundlemage.cli.main import main

main()
