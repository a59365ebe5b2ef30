"""Transforms from a gradient to a step."""
