"""ASE's constraints, read once and applied on the device."""
