"""What moved between training and each test split: sizes, degrees, labels, features, domain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.errors import InputError
from gduq.graph import row_marks

__all__ = ["Moved", "compare", "plot", "statistics"]

_AT_ONCE = 1024  # graphs


@dataclass(frozen=True)
class Moved:
    """One quantity of one split, beside training; rows without a target do not count for it.

    ``shift`` is the difference of the means in standard deviations of training (``inf`` where
    training does not vary but the split differs); ``distance`` the largest difference of the two
    distribution functions (Kolmogorov-Smirnov; for classes: total variation), from 0 to 1.
    """

    split: str
    quantity: str
    train_mean: float
    train_std: float
    mean: float
    std: float
    shift: float
    distance: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and tables."""
        return asdict(self)


def compare(splits: Splits) -> list[Moved]:
    """Hold every split (and severity) against training, one row per quantity.

    Beside the quantities of `statistics` there is a row for the column of ``x`` whose mean moved
    most (over nodes), and one for the correlation of domain and target: in a concept shift that is
    what moves (``mean`` then is the correlation, ``shift`` its change, ``distance`` half of that).

    Example:
        >>> from gduq import shifts
        >>> edges = torch.zeros(2, 0).long()
        >>> graphs = [Data(edge_index=edges, num_nodes=n, y=n % 2) for n in range(1, 41)]
        >>> rows = compare(shifts.size(graphs))
        >>> [(r.mean, r.distance) for r in rows if (r.split, r.quantity) == ("ood_test", "nodes")]
        [(38.5, 1.0)]
    """
    train = _with_domain(splits, "train", splits.train)
    rows = []
    for name, view in [*splits, *splits.severities.items()][1:]:
        found = _with_domain(splits, name, view)
        both = [q for q in train if q in found]
        known = [q for q in both if _known(train[q]).numel() and _known(found[q]).numel()]
        rows += [_moved(name, q, train[q], found[q]) for q in known]
        rows += _most_moved_column(name, splits.train, view)
        rows += _correlations(name, train, found)
    return rows


def statistics(view: View, names: Sequence[str] = ()) -> dict[str, Tensor]:
    """Quantities of the rows of a view, each ``[m]``.

    Graph task: ``nodes``, ``edges`` and mean ``degree`` of each graph, the mean and the length of
    its nodes' features. Node task: ``degree`` of each node, mean and length of its features. Then
    the truth: classes as ``label``, a value as ``target``, of several each as ``target NAME`` with
    NaN where it is missing.

    Args:
        view: The rows.
        names: Names of the targets; without them they are counted from 0.
    """
    if view.task == "edge" or isinstance(view.graphs[0], HeteroData):
        kind = "edges" if view.task == "edge" else "a HeteroData"
        raise InputError("graphs, or nodes of a homogeneous graph, to describe", kind)
    parts: dict[str, list[Tensor]] = {}
    for batch in view.batches(_AT_ONCE):
        found = _of_nodes(batch) if view.task == "node" else _of_graphs(batch)
        for name, values in found.items():
            parts.setdefault(name, []).append(values.double())
    out = {name: torch.cat(values) for name, values in parts.items()}
    if view.order is not None:
        out = {name: values[view.order] for name, values in out.items()}
    if view.graphs[0].get("y") is None:
        return out
    y = view.target
    if y.dim() == 1:
        return out | {"target" if y.is_floating_point() else "label": y.double()}
    known = names if len(names) == y.size(1) else range(y.size(1))
    return out | {f"target {name}": y[:, i].double() for i, name in enumerate(known)}


def plot(splits: Splits, path: str | Path) -> Path:
    """Draw the histogram of every quantity, training against each split, to an image file."""
    from matplotlib.figure import Figure

    path = Path(path).expanduser()
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("a file name that ends in .png, .svg or .pdf", path.name)
    views = [*splits, *splits.severities.items()]
    found = {name: _with_domain(splits, name, view) for name, view in views}
    quantities = found["train"].keys()
    columns = min(3, len(quantities))
    lines = -(-len(quantities) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.0 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).reshape(-1)
    for axis, quantity in zip_longest(axes, quantities):
        if quantity is None:
            axis.set_axis_off()
        else:
            _histogram(axis, quantity, {n: f[quantity] for n, f in found.items() if quantity in f})
    figure.suptitle(splits.name)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=150)
    return path


def _histogram(axis: Any, quantity: str, values: Mapping[str, Tensor]) -> None:
    axis.set_xlabel(quantity)
    axis.set_yticks([])
    values = {name: known for name, v in values.items() if (known := _known(v)).numel()}
    if not values:
        return
    every = torch.cat(list(values.values()))
    low, high, bins = float(every.min()), float(every.max()), 40
    if bool((every == every.round()).all()) and high - low < 40:
        low, high, bins = low - 0.5, high + 0.5, round(high - low) + 1
    for name, value in values.items():
        kind, alpha = ("stepfilled", 0.3) if name == "train" else ("step", 1.0)
        style: dict[str, Any] = {"label": name, "histtype": kind, "alpha": alpha}
        axis.hist(value.numpy(), bins=bins, range=(low, high), density=True, **style)


def _with_domain(splits: Splits, name: str, view: View) -> dict[str, Tensor]:
    found = statistics(view, splits.target_names)
    return found | {"domain": splits.domains[name].double()} if name in splits.domains else found


def _of_graphs(batch: Data) -> dict[str, Tensor]:
    if batch.get("ptr") is not None:
        nodes, owner = batch.ptr.diff(), batch.batch
    else:
        nodes = torch.tensor([int(batch.num_nodes or 0)])
        owner = torch.zeros(int(nodes), dtype=torch.long)
    edges = torch.bincount(owner[batch.edge_index[0]], minlength=nodes.numel())
    sizes = nodes.clamp(min=1)
    found = {"nodes": nodes, "edges": edges, "degree": edges / sizes}
    for name, values in _of_features(batch).items():
        total = torch.zeros(nodes.numel(), dtype=values.dtype).index_add_(0, owner, values)
        found[name] = total / sizes
    return found


def _of_nodes(batch: Data) -> dict[str, Tensor]:
    degree = torch.bincount(batch.edge_index[0], minlength=int(batch.num_nodes or 0))
    marks = row_marks(batch)
    return {k: values[marks] for k, values in {"degree": degree, **_of_features(batch)}.items()}


def _of_features(batch: Data) -> dict[str, Tensor]:
    """Mean and length of the features of each node; of the encoding where there are no features."""
    name = next((key for key in ("x", "pe") if batch.get(key) is not None), None)
    if name is None:
        return {}
    x = _array(batch[name])
    mean, length = x.sum(axis=1) / max(x.shape[1], 1), np.sqrt((x * x).sum(axis=1))
    return {f"mean of {name}": torch.as_tensor(mean), f"length of {name}": torch.as_tensor(length)}


def _known(values: Tensor) -> Tensor:
    """The values that are there: targets may be missing."""
    return values[~values.isnan()]


def _moved(split: str, quantity: str, train: Tensor, other: Tensor) -> Moved:
    train, other = _known(train), _known(other)
    means = float(train.mean()), float(other.mean())
    stds = float(train.std(correction=0)), float(other.std(correction=0))
    gap = means[1] - means[0]
    rounding = 1e-9 * max(abs(means[0]), abs(means[1]))
    if stds[0] > rounding:
        shift = gap / stds[0]
    else:
        shift = 0.0 if abs(gap) <= rounding else math.copysign(math.inf, gap)
    distance = (_variation if quantity == "label" else _largest_gap)(train, other)
    return Moved(split, quantity, means[0], stds[0], means[1], stds[1], shift, distance)


def _correlations(
    split: str, train: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> list[Moved]:
    """How the correlation of the domain with the only target changed, if there is one."""
    kind = next((name for name in ("label", "target") if name in train), None)
    found = []
    for values in (train, other):
        if kind is None or "domain" not in values or kind not in values:
            return []
        pair = torch.stack([values["domain"], values[kind]])
        pair = pair[:, ~pair.isnan().any(dim=0)]
        if pair.size(1) < 2 or bool((pair.std(dim=1) == 0).any()):
            return []  # one domain value or one class: no correlation
        found.append(float(torch.corrcoef(pair)[0, 1]))
    gap = found[1] - found[0]
    name = f"correlation of domain and {kind}"
    return [Moved(split, name, found[0], 0.0, found[1], 0.0, gap, abs(gap) / 2)]


def _most_moved_column(split: str, train: View, other: View) -> list[Moved]:
    if train.graphs[0].get("x") is None or other.graphs[0].get("x") is None:
        return []
    (mean, variance), (other_mean, other_variance) = _column_moments(train), _column_moments(other)
    pooled = np.clip(np.sqrt((variance + other_variance) / 2), 1e-12, None)
    column = int((np.abs(other_mean - mean) / pooled).argmax())
    one_hot = np.eye(1, mean.size, column).ravel()
    found = [np.concatenate([x @ one_hot for x in _features(view)]) for view in (train, other)]
    return [_moved(split, f"x[{column}], which moved most", *map(torch.from_numpy, found))]


def _column_moments(view: View) -> tuple[Any, Any]:
    """Mean and variance of each column of ``x`` over the nodes ``[d]``."""
    count, total, square = 0, 0.0, 0.0
    for x in _features(view):
        count, total = count + x.shape[0], total + x.sum(axis=0)
        square = square + (x * x).sum(axis=0)
    mean: Any = total / max(count, 1)
    return mean, np.clip(square / max(count, 1) - mean**2, 0, None)


def _features(view: View) -> Iterator[Any]:
    """``x`` of the marked nodes, batch by batch."""
    for batch in view.batches(_AT_ONCE):
        x, marks = _array(batch.x), row_marks(batch)
        yield x if marks is None else x[marks.numpy()]


def _array(x: Tensor) -> Any:
    """In double precision: of a sparse matrix SciPy's array, which computes as NumPy's do."""
    if x.layout != torch.sparse_csr:
        return x.double().numpy()
    parts = (x.values().double(), x.col_indices(), x.crow_indices())
    return sp.csr_array(tuple(part.numpy() for part in parts), shape=tuple(x.shape))


def _largest_gap(one: Tensor, two: Tensor) -> float:
    from scipy.stats import ks_2samp

    return float(ks_2samp(one.numpy(), two.numpy(), method="asymp").statistic)


def _variation(one: Tensor, two: Tensor) -> float:
    classes, number = torch.cat([one, two]).unique(return_inverse=True)
    parts = number.split([one.numel(), two.numel()])
    shares = [torch.bincount(p, minlength=classes.numel()).double() / p.numel() for p in parts]
    return float((shares[0] - shares[1]).abs().sum() / 2)
