"""What an exported file says about itself: inputs, outputs, target, how SMILES become inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from gduq import __version__
from gduq.bundle.export_inputs import Inputs
from gduq.prediction.predictor import Predictor

__all__ = ["about"]


def about(
    model: Predictor,
    inputs: Inputs,
    said: Mapping[str, Tensor],
    graphs: Iterable[Any],
    notes: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a user of the file has to know, as JSON holds it.

    Args:
        model: The model.
        inputs: What the program is given.
        said: What it then says.
        graphs: Some of the graphs it was exported with.
        notes: What was noted about the training table, or ``None``.
    """
    assert model.target is not None
    noted = dict(notes or {})
    target = model.target.combined().spec()
    columns = noted.get("targets") or (None if target["kind"] == "classes" else target.get("names"))
    return {
        "gduq": __version__,
        "inputs": inputs.described(),
        "smiles": _categories(inputs, graphs),
        "outputs": list(said),
        "target": {**target, "columns": columns},
        "calibrated": model.calibration,
        "hypotheses": said["samples"].size(0),
    }


def _categories(inputs: Inputs, graphs: Iterable[Any]) -> dict[str, Any] | None:
    """Per column of atoms and bonds, the values in the order of their numbers.

    ``None`` for graphs that are not what PyG's ``from_smiles`` makes of SMILES.
    """
    from torch_geometric.utils.smiles import e_map, x_map

    lists = {"x": x_map, "edge_attr": e_map}
    widths = {name: value.size(-1) for name, value in inputs.tensors.items() if name in lists}
    like = all(width == len(lists[name]) for name, width in widths.items())
    if not like or not all(isinstance(graph.get("smiles"), str) for graph in graphs):
        return None
    return {"made_by": "torch_geometric.utils.from_smiles", **lists}
