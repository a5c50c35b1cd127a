"""A model at work: decisions for every row, streams of files, the service of ``gduq serve``."""

__all__: list[str] = []
