"""Second derivatives that optimizers learn from their steps."""
