"""A CSV (or TSV) table of molecules: one SMILES column, any number of target columns.

Molecules become graphs by PyG's ``from_smiles``: nine atom features, three bond features (handed
out as floats, so that any model takes them), and the string itself as ``smiles``.

Targets. One column of whole numbers is a class (or count) ``y [1]`` of integers, of other numbers
``y [1]`` of floats. Up to 20 different whole numbers with some below 0 (such as -1 and 1) are names
of classes, numbered from 0 in ascending order; more of them are floats. A column without a single
number holds names of classes; they are numbered in
alphabetical order, or in the order of ``class_names``. Several columns are ``y [1, T]`` of floats,
NaN where a field is empty.
"""

from __future__ import annotations

import csv
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.rejects import Reject
from gduq.errors import InputError

__all__ = ["Table"]

_MAX_CLASSES = 1000
_MAX_SIGNED = 20  # different whole numbers, some below 0, up to which they are classes
_Row = tuple[int, list[str] | str]  # line number, and the fields or why there are none


class Table:
    """The molecules of a table, read line by line.

    Args:
        path: The file; a name that ends in ``.tsv`` is read with tabs.
        smiles: Name of the column of SMILES strings.
        targets: Names of the target columns; none of them means graphs without ``y``.
        class_names: Classes in the order of their numbers, for one target column; ``None``: as
            found. Pass those of the training set when a test set may not hold every class.
    """

    def __init__(
        self,
        path: Path,
        smiles: str = "smiles",
        targets: Sequence[str] = (),
        class_names: Sequence[str] | None = None,
    ) -> None:
        _need_rdkit()
        self.path = path
        self.targets = (targets,) if isinstance(targets, str) else tuple(targets)
        if class_names is not None and len(self.targets) > 1:
            raise InputError("class_names with one target column", f"{len(self.targets)} columns")
        self._header = self._read_header()
        self._smiles = self._position(smiles)
        self._columns = [self._position(name) for name in self.targets]
        self._used = [self._smiles, *self._columns]
        self._whole, self.class_names = True, tuple(class_names or ())
        if len(self.targets) == 1 and class_names is None:
            self._whole, self.class_names = self._survey(self._columns[0])

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        for index, (line, row) in enumerate(self._rows()):
            try:
                yield index, self._molecule(row)
            except ValueError as error:
                text = row if isinstance(row, str) else ",".join(row)
                yield index, Reject(self.path.name, line, str(error), text[:200])

    # -- the file ------------------------------------------------------------------------------

    def _read_header(self) -> list[str]:
        with self.path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            header = next(csv.reader(file, delimiter=self._delimiter), None)
        if not header:
            raise InputError(f"a line of column names in {self.path}", "an empty file")
        return [name.strip() for name in header]

    def _position(self, name: str) -> int:
        found = [i for i, column in enumerate(self._header) if column == name]
        if len(found) != 1:
            shown = ", ".join(self._header[:20]) + (", ..." if len(self._header) > 20 else "")
            got = f"{len(found)} of that name" if found else f"the columns {shown}"
            raise InputError(f"one column {name!r} in {self.path}", got, "Name another column.")
        return found[0]

    @property
    def _delimiter(self) -> str:
        return "\t" if self.path.suffix == ".tsv" else ","

    def _rows(self) -> Iterator[_Row]:
        """Every row below the header; blank lines are no rows."""
        # bytes that are no UTF-8 survive as surrogates, so that only their row is lost
        with self.path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = _Lines(file)
            next(csv.reader(lines, delimiter=self._delimiter))
            while True:
                lines.taken.clear()
                line = lines.number + 1
                try:
                    row: list[str] | str = next(csv.reader(lines, delimiter=self._delimiter))
                except StopIteration:
                    return
                except csv.Error as error:
                    row = str(error)
                if len(lines.taken) > 1 and not self._spans_lines(row, lines.taken):
                    row = f"a quote that is not closed: {lines.taken[0].strip()[:150]}"
                    lines.give_back()
                if isinstance(row, str) or any(field.strip() for field in row):
                    yield line, row

    def _spans_lines(self, row: list[str] | str, lines: Sequence[str]) -> bool:
        """Whether several lines are one row; else a stray quote has swallowed the next ones."""
        if isinstance(row, str) or len(row) != len(self._header):
            return False
        if any("\n" in row[c].strip() or "\r" in row[c].strip() for c in self._used):
            return False  # no SMILES and no target has a line break
        try:
            next(csv.reader(lines, delimiter=self._delimiter, strict=True))
        except csv.Error:
            return False
        return True

    def _survey(self, column: int) -> tuple[bool, tuple[str, ...]]:
        """Whether a target column holds whole numbers only, and the names of its classes."""
        values: set[float] = set()
        names: set[str] = set()
        for _, row in self._rows():
            if isinstance(row, str) or len(row) != len(self._header):
                continue
            text = row[column].strip()
            value = _number(text)
            if value is not None:
                values.add(value)
            elif text and len(names) <= _MAX_CLASSES:
                names.add(text)
        if values:
            return _classes(values)
        if len(names) > _MAX_CLASSES:
            got = f"more than {_MAX_CLASSES} different words in {self.targets[0]!r}"
            raise InputError(f"numbers or at most {_MAX_CLASSES} classes in {self.path}", got)
        return True, tuple(sorted(names))

    # -- one row -------------------------------------------------------------------------------

    def _molecule(self, row: list[str] | str) -> Data:
        """The graph of a row; a ``ValueError`` says why there is none."""
        if isinstance(row, str):
            raise ValueError(row)
        if len(row) != len(self._header):
            raise ValueError(f"{len(row)} fields instead of {len(self._header)}")
        if any("\udc80" <= letter <= "\udcff" for field in row for letter in field):
            raise ValueError("bytes that are no UTF-8")
        y = self._target([row[column].strip() for column in self._columns])
        data = _from_smiles(row[self._smiles].strip())
        if y is not None:
            data.y = y
        return data

    def _target(self, fields: list[str]) -> Tensor | None:
        if not fields:
            return None
        if len(fields) > 1:
            values = [_finite(text, name) for text, name in zip(fields, self.targets, strict=True)]
            return torch.tensor([values])
        text, name = fields[0], self.targets[0]
        if not text:
            raise ValueError(f"target {name!r} is empty")
        if self.class_names:
            value = _number(text)
            if text not in self.class_names and value is not None and value.is_integer():
                text = str(int(value))  # 1.0 and +1 are class 1
            if text not in self.class_names:
                known = ", ".join(self.class_names[:10])
                raise ValueError(f"target {name!r} is {text!r}, none of the classes {known}")
            return torch.tensor([self.class_names.index(text)])
        value = _finite(text, name)
        return torch.tensor([int(value)]) if self._whole else torch.tensor([value])


class _Lines:
    """The lines of a file, of which those read last can be given back."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file, self._again = iter(file), deque[str]()
        self.taken: list[str] = []
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.taken.append(self._again.popleft() if self._again else next(self._file))
        self.number += 1
        return self.taken[-1]

    def give_back(self) -> None:
        """Read all lines taken but the first once more."""
        self.number -= len(self.taken) - 1
        self._again.extendleft(reversed(self.taken[1:]))


def _classes(values: set[float]) -> tuple[bool, tuple[str, ...]]:
    """Whether numbers are class numbers, and the names of classes that cannot be theirs."""
    if not all(value.is_integer() for value in values):
        return False, ()
    if min(values) >= 0:  # a test set may lack some classes, so gaps say nothing
        return True, ()
    if len(values) > _MAX_SIGNED:
        return False, ()
    return True, tuple(str(int(value)) for value in sorted(values))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _finite(text: str, name: str) -> float:
    if not text:
        return math.nan
    value = _number(text)
    if value is None:
        raise ValueError(f"target {name!r} is {text!r}, no finite number")
    return value


def _from_smiles(smiles: str) -> Data:
    from torch_geometric.utils import from_smiles

    if not smiles:
        raise ValueError("the SMILES field is empty")
    try:
        data: Data = from_smiles(smiles)
    except ValueError as error:  # an atom or bond outside PyG's tables
        raise ValueError(f"SMILES {smiles!r}: {error}") from error
    if data.num_nodes == 0:  # what PyG makes of a string that RDKit refuses
        raise ValueError(f"{smiles!r} is no valid SMILES")
    data.x, data.edge_attr = data.x.float(), data.edge_attr.float()
    return data


def _need_rdkit() -> None:
    try:
        import rdkit  # noqa: F401
    except ImportError as error:
        raise InputError(
            "RDKit to read SMILES", "none installed", 'Install it: pip install "gduq[molecules]"'
        ) from error
