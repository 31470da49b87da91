"""One process or many."""
