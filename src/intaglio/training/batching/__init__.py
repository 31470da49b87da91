"""From rows to the micro-batches of a step, a file for each kind of example."""
