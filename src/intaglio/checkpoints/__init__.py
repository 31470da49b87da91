"""Models on disk: weight maps, Hugging Face directories, GGUF files, and real models pulled by name."""
