"""Measurements with provenance. `python -m benchmarks NAME` writes results/; README and docs quote only from there."""
