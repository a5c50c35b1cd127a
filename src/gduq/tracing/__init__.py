"""Calls any network, finds its head and its layers, and cuts it there."""

__all__: list[str] = []
