"""The figures of the atlas, one idea a file."""
