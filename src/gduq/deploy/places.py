"""Where the rows of answers come from: file, row, node, SMILES and the user's own columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

from torch_geometric.data import Data

from gduq.data.files import Reject, open_source, stream
from gduq.data.header import check_kept, is_table, read_header
from gduq.data.table import MoleculeTable
from gduq.deploy.rowfiles import Columns

__all__ = ["Item", "Places"]


class Item(NamedTuple):
    """A row of a source: its number, its graph, and the fields that are kept."""

    row: int
    graph: Data | Reject
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Places:
    """How sources are read, and what of a row goes into the answers."""

    smiles: str = "smiles"  # the column, for tables
    keep: tuple[str, ...] = ()  # columns of the tables to copy into the answers
    shows_smiles: bool = False

    @classmethod
    def of(
        cls,
        sources: Sequence[Path],
        smiles: str | None = None,
        keep: Sequence[str] = (),
        ids: Sequence[str] = (),
    ) -> Places:
        """What is known of some sources, whose answers have the same columns, before they are read.

        ``ids``, columns that name a row, are kept where all sources have them.
        """
        check_kept(sources, keep)
        tables = [source for source in sources if is_table(source) and source.is_file()]
        headers = [read_header(source)[0] for source in tables]
        whole = bool(tables) and len(tables) == len(sources)
        own = [name for name in ids if whole and all(h.count(name) == 1 for h in headers)]
        column = smiles or "smiles"
        wanted = [n for n in dict.fromkeys([*own, *keep]) if n.lower() != column.lower()]
        shown = bool(tables) or any(_has_smiles(source) for source in sources)
        return cls(column, tuple(wanted), shown)

    def read(self, source: Path, size: int) -> Iterator[list[Item]]:
        """The rows of a source, some at a time."""
        items = stream(source, smiles=self.smiles)
        kept: Any = repeat(("",) * len(self.keep))
        if self.keep and is_table(source):
            table = MoleculeTable(source, self.smiles)
            kept = zip(*(table.column(name) for name in self.keep), strict=True)
        rows = (Item(row, graph, own) for (row, graph), own in zip(items, kept, strict=False))
        while part := list(islice(rows, size)):
            yield part

    def columns(
        self, source: str, items: Sequence[Item], nodes: Sequence[int] | None, answers: Columns
    ) -> dict[str, list[Any]]:
        """The answers about some rows, with file, row, node, SMILES and kept columns before them.

        ``nodes`` are those of each row, where they are answered for. A kept column whose name is
        taken gets ``input_`` in front of it.
        """
        sizes = [1] * len(items) if nodes is None else nodes
        spread = [item for item, size in zip(items, sizes, strict=True) for _ in range(size)]
        found: dict[str, list[Any]] = {"file": [source] * len(spread)}
        found["row"] = [item.row for item in spread]
        if nodes is not None:
            found["node"] = [node for size in sizes for node in range(size)]
        if self.shows_smiles:
            found["smiles"] = [getattr(item.graph, "smiles", None) for item in spread]
        for place, name in enumerate(self.keep):
            while name in found or name in answers:
                name = f"input_{name}"
            found[name] = [item.kept[place] for item in spread]
        return {**found, **answers}


def _has_smiles(source: Path) -> bool:
    """Whether the first graph of a file says which molecule it is."""
    if source.suffix != ".safetensors":
        return False
    first = next(iter(open_source(source)), (0, None))[1]
    return isinstance(first, Data) and isinstance(first.get("smiles"), str)
