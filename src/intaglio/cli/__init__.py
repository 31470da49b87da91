"""The `intaglio` command, a file per verb."""
