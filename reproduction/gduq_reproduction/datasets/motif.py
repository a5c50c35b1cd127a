"""Motif without label noise. The paper's had none: it prints an accuracy of .995 on ID rows."""

from __future__ import annotations

import torch

from gduq.data import Splits, View, add_laplacian
from gduq.data.generated import MOTIFS, build_motif, draw_recipe
from gduq.shifts.cuts import make_splits
from gduq_reproduction.datasets.raw import Root

__all__ = ["load_motif"]


def load_motif(domain: str, shift: str, root: Root = None, seed: int = 0) -> Splits:
    """The graphs, encodings and cuts of ``motif-lpe``; the label is the motif."""
    generator = torch.Generator().manual_seed(seed)
    recipe, cut = draw_recipe(domain, shift, generator)
    labels, graphs = {"y": recipe.motif}, build_motif(recipe, generator)
    graphs = add_laplacian(graphs.with_columns(labels, torch.ones_like(recipe.motif)))
    name, text = (
        f"motif-exact/{domain}/{shift}",
        f"Motif without label noise, shift of the {domain}.",
    )
    splits = make_splits(View(graphs), cut, recipe.domain, name=name, description=text)
    return splits.with_(class_names=MOTIFS)
