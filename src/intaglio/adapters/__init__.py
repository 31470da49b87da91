"""Adapters: which parts of a model get low-rank updates, PEFT directories, and merging."""
