"""Structures of ASE as arrays: reading, batches, cells, constraints, formats."""
