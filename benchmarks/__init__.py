"""How fast it is: `python -m benchmarks.speed`. Not part of the package that is installed."""
