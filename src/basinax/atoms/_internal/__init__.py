"""L-BFGS in internal coordinates, on the host, of one structure at a time."""
