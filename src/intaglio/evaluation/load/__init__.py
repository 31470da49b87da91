"""Load on an OpenAI-style server: what it is sent, when, and what the times of its answers come to."""
