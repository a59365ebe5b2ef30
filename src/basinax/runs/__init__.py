"""Runs whose results are stored as they arrive, in folders or databases."""
