"""Who is asked: a model in this process, or one behind a URL."""
