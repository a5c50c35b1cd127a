"""The named datasets: those of the paper, and molecules of MoleculeNet."""

__all__: list[str] = []
