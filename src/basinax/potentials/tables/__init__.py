"""Parameters of potentials, by species and from files."""
