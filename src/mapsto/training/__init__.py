"""How a model learns, and what its numbers are worth: the loop, checkpoints, metrics and the baselines beside them."""
