"""Several runs from one file."""
