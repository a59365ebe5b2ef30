"""What basinax reads of JAX's process: switches, forks, compilations."""
