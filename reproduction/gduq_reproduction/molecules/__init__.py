"""The benchmark of molecules: our methods and Chemprop on the same rows, judged by one code."""

__all__: list[str] = []
