"""Models of others: JAX functions of a structure's graph, and models of TorchSim's interface."""
