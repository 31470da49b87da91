"""One loop, and what it is given: recipes, objectives, optimizers, run state."""
