"""What a run measures beside its loss."""
