"""Cells that move with the atoms."""
