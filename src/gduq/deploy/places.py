"""Where the rows of answers come from: file, row, node, SMILES and the user's own columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

from torch_geometric.data import Data

from gduq.data.files import Reject, open_source, stream
from gduq.data.header import is_table, read_header
from gduq.data.table import Table
from gduq.deploy.rowfiles import Columns
from gduq.errors import InputError

__all__ = ["Item", "Places"]


class Item(NamedTuple):
    """A row of a source: its number, its graph, and the fields that are kept."""

    row: int
    graph: Data | Reject
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Places:
    """How sources are read, and what of a row goes into the answers.

    Attributes:
        smiles: Column of SMILES strings, for tables.
        keep: Columns of the tables to copy into the answers.
        shows_smiles: Whether the answers have a column of SMILES.
    """

    smiles: str = "smiles"
    keep: tuple[str, ...] = ()
    shows_smiles: bool = False

    @classmethod
    def of(
        cls,
        sources: Sequence[Path],
        smiles: str | None = None,
        keep: Sequence[str] = (),
        notes: Any = None,
    ) -> Places:
        """What is known of some sources before they are read.

        Args:
            sources: Files or folders; those of one call have the same columns in the answers.
            smiles: Column of SMILES; ``None``: that of the training table, else ``"smiles"``.
            keep: Columns to copy.
            notes: What the bundle says of the training table. Its ``ids``, the columns that name a
                row, are kept where all tables have them.
        """
        tables = [source for source in sources if is_table(source) and source.is_file()]
        headers = {source: read_header(source)[0] for source in tables}
        noted = notes if isinstance(notes, dict) else {}
        column = smiles or _noted(noted.get("smiles"), headers.values()) or "smiles"
        for name in dict.fromkeys(keep):
            for source in sources:
                _check_column(source, headers.get(source), name)
        ids = noted.get("ids") if len(tables) == len(sources) else None
        own = [i for i in ids or () if _noted(i, headers.values())] if _texts(ids) else []
        wanted = [n for n in dict.fromkeys([*own, *keep]) if n.lower() != column.lower()]
        shown = bool(tables) or any(_has_smiles(source) for source in sources)
        return cls(column, tuple(wanted), shown)

    def read(self, source: Path, size: int) -> Iterator[list[Item]]:
        """The rows of a source, some at a time."""
        items = stream(source, smiles=self.smiles)
        kept: Any = repeat(("",) * len(self.keep))
        if self.keep and is_table(source):
            table = Table(source, self.smiles)
            kept = zip(*(table.column(name) for name in self.keep), strict=True)
        rows = (Item(row, graph, own) for (row, graph), own in zip(items, kept, strict=False))
        while part := list(islice(rows, size)):
            yield part

    def columns(
        self, source: str, items: Sequence[Item], nodes: Sequence[int] | None, answers: Columns
    ) -> dict[str, list[Any]]:
        """The answers about some rows, with file, row, node, SMILES and kept columns before them.

        A kept column whose name is taken gets ``input_`` in front of it.

        Args:
            source: The file.
            items: Rows of it whose graphs were answered.
            nodes: Per row its nodes, where they are answered for; else ``None``.
            answers: What is said of each row, or of each node.
        """
        sizes = [1] * len(items) if nodes is None else nodes
        found: dict[str, list[Any]] = {
            "file": [source] * sum(sizes),
            "row": _spread([item.row for item in items], sizes),
        }
        if nodes is not None:
            found["node"] = [node for size in sizes for node in range(size)]
        if self.shows_smiles:
            texts = [i.graph.get("smiles") if isinstance(i.graph, Data) else None for i in items]
            found["smiles"] = _spread(texts, sizes)
        for name, place in self.named((*found, *answers)).items():
            found[name] = _spread([item.kept[place] for item in items], sizes)
        return {**found, **answers}

    def named(self, taken: Iterable[str]) -> dict[str, int]:
        """What the kept columns are called in the answers, and their places."""
        names, found = set(taken), dict[str, int]()
        for place, name in enumerate(self.keep):
            while name in names or name in found:
                name = f"input_{name}"
            found[name] = place
        return found


def _spread(values: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    return [value for value, size in zip(values, sizes, strict=True) for _ in range(size)]


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _noted(name: Any, headers: Any) -> str | None:
    """A column of the training table that all tables have."""
    there = isinstance(name, str) and bool(headers) and all(h.count(name) == 1 for h in headers)
    return name if there else None


def _check_column(source: Path, header: Sequence[str] | None, name: str) -> None:
    if header is None:
        got = f"{source}, which has no columns"
        raise InputError("tables, .csv or .tsv, with --keep", got, "Leave --keep out.")
    if header.count(name) != 1:
        shown = ", ".join(header[:20]) + (", ..." if len(header) > 20 else "")
        got = f"{header.count(name)} of that name" if name in header else f"the columns {shown}"
        raise InputError(f"one column {name!r} in {source} to keep", got, "Name another column.")


def _has_smiles(source: Path) -> bool:
    """Whether the first graph of a file says which molecule it is."""
    if source.suffix != ".safetensors":
        return False
    first = next(iter(open_source(source)), (0, None))[1]
    return isinstance(first, Data) and isinstance(first.get("smiles"), str)
