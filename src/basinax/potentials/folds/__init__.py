"""Sums over neighbours in an order that the structure alone decides."""
