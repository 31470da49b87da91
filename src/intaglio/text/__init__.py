"""What a string is to a model: tokenizers, text as it streams, and the one rendering of a chat."""
