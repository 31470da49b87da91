"""Answers from the user's documents: a folder becomes an index, a question finds its passages."""
