"""Transforms as configs and as text; files that are read and written."""
