"""What models are made of, one idea a file."""
