"""Transforms as configs and as text; files."""
