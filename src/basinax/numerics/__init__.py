"""How a number is computed, so that nothing else decides its bits."""
