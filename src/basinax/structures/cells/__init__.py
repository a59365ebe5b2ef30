"""Moving cells."""
