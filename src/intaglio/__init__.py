"""Intaglio: the history of language models as running code."""
