"""Scripts here are run by tests of their own; to collect them for doctests would run them too."""

collect_ignore_glob = ["*.py"]
