"""Runs whose results are kept as they come, in folders."""
