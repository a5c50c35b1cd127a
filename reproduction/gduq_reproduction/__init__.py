"""Reproduction: datasets, tables and printed figures of the paper; only `gduq.cli` imports it."""

__all__: list[str] = []
