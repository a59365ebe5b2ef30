"""L-BFGS in internal coordinates, on the host, for one structure at a time."""
