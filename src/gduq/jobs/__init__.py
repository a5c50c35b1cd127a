"""Many jobs at once: in local processes or on a Ray cluster; a dead worker loses its job only."""

__all__: list[str] = []
