"""Which row belongs to which system, and arithmetic per system."""
