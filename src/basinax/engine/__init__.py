"""Batches between host and device: places, refills, lists."""
