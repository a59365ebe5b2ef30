"""Minimum-energy paths: bands of images, each band relaxed as one system."""
