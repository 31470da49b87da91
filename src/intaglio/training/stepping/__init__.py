"""What turns gradients into new weights, and what makes a step cheaper."""
