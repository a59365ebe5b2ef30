"""Structure files: formats, trials, databases."""
