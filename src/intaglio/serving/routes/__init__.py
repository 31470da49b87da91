"""The addresses of the API, each a few lines over what answers it."""
