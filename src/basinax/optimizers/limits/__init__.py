"""Transforms that shorten gradients or steps."""
