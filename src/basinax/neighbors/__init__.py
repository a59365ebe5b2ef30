"""Neighbour lists: made on the host, narrowed on the device."""
