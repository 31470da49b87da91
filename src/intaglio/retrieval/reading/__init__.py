"""Files of every kind as blocks of text with their places: one module a kind, and the table of kinds in `files`."""
