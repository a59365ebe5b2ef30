"""The state of JAX in this process: switches, forks, compilations; and its cores."""
