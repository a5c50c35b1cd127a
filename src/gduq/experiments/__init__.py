"""From a config to a result on disk."""

__all__: list[str] = []
