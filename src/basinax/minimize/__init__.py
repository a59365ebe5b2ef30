"""The loop over steps, per system."""
