"""What a step takes of memory: planned, traced, and said when it runs out."""
