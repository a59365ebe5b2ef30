"""What optimizers learn of second derivatives."""
