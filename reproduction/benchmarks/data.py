"""Speed of the data: Motif against networkx, the cache against building, batches against PyG."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import from_networkx

from gduq.data import View, load
from gduq.data.laplacian import laplacian_encoding
from gduq.data.motif import draw_recipe
from gduq.data.motif_graphs import BASES, MOTIFS, MotifRecipe, build_motif
from timing import Row, at_least, medians

SAMPLE = 300  # graphs that networkx builds


def rows(repeats: int = 5) -> Iterator[Row]:
    """All rows."""
    for domain in ("basis", "size"):
        yield _generation(domain, repeats)
    for name in ("motif/basis/covariate", "motif/size/concept", "motif-lpe/basis/covariate"):
        yield _reload(name, repeats)
    for shuffle in (False, True):
        yield _batches(shuffle, repeats)
    yield _encodings(repeats)


def _generation(domain: str, repeats: int) -> Row:
    """Time a graph of 30 000 built at once, against one after the other with networkx."""
    recipe, _ = draw_recipe(domain, "covariate", torch.Generator().manual_seed(0))
    some = torch.randperm(30000, generator=torch.Generator().manual_seed(1))[:SAMPLE]
    few = MotifRecipe(*(values[some] for values in vars(recipe).values()))
    seconds = medians(
        {
            "ours": lambda: build_motif(recipe, torch.Generator().manual_seed(0)),
            "networkx": lambda: _with_networkx(few),
        },
        repeats,
    )
    ours, theirs = seconds["ours"] / 30000, seconds["networkx"] / SAMPLE
    note = f"30000 graphs in {seconds['ours']:.2f} s"
    return at_least(f"Motif {domain}: a graph, networkx / ours", theirs / ours, 5, note)


def _with_networkx(recipe: MotifRecipe) -> list[Data]:
    random = np.random.default_rng(0)
    out = []
    for base, width, motif, _ in zip(*(v.tolist() for v in vars(recipe).values()), strict=True):
        graph = _networkx_graph(BASES[base], width, MOTIFS[motif], random)
        data = from_networkx(graph)
        data.x, data.y = torch.ones(data.num_nodes, 1), torch.tensor([motif])
        out.append(data)
    return out


def _networkx_graph(base: str, width: int, motif: str, random: np.random.Generator) -> nx.Graph:
    makers = {
        "wheel": nx.wheel_graph,
        "tree": lambda w: nx.balanced_tree(2, max(int(np.log2(w)) - 1, 1)),
        "ladder": nx.ladder_graph,
        "star": nx.star_graph,
        "path": nx.path_graph,
    }
    shapes = {
        "house": nx.house_graph,
        "cycle": lambda: nx.cycle_graph(5),
        "crane": lambda: nx.complete_bipartite_graph(2, 3),
    }
    graph = makers[base](width)
    nodes = graph.number_of_nodes()
    graph.add_edges_from((u + nodes, v + nodes) for u, v in shapes[motif]().edges)
    graph.add_edge(int(random.integers(nodes)), nodes)
    for _ in range(int(0.05 * graph.number_of_edges())):
        u, v = random.integers(nodes + 5, size=2).tolist()
        while u == v or graph.has_edge(u, v):
            u, v = random.integers(nodes + 5, size=2).tolist()
        graph.add_edge(u, v)
    return graph


def _reload(name: str, repeats: int) -> Row:
    """Building and writing a set, against opening it; each build in a folder of its own."""
    built, opened = [], []
    for seed in range(repeats):
        with tempfile.TemporaryDirectory() as root:
            start = time.perf_counter()
            load(name, root, seed)
            middle = time.perf_counter()
            load(name, root, seed)
            built.append(middle - start)
            opened.append(time.perf_counter() - middle)
    ratio = float(np.median(built) / np.median(opened))
    note = f"{np.median(built):.2f} s and {1000 * np.median(opened):.1f} ms"
    return at_least(f"{name}: build / reload", ratio, 20, note)


def _batches(shuffle: bool, repeats: int) -> Row:
    """One epoch of mini-batches of 128 over the same 6 000 graphs."""
    generator = torch.Generator().manual_seed(0)
    recipe, _ = draw_recipe("basis", "covariate", generator, total=6000)
    graphs = list(build_motif(recipe, generator))
    view, loader = View(graphs), DataLoader(graphs, batch_size=128, shuffle=shuffle)

    def ours() -> None:
        for _ in view.batches(128, shuffle=shuffle, generator=generator):
            pass

    def theirs() -> None:
        for _ in loader:
            pass

    seconds = medians({"ours": ours, "theirs": theirs}, repeats)
    how = "shuffled" if shuffle else "in order"
    note = f"6000 graphs in {1000 * seconds['ours']:.0f} ms"
    ratio = seconds["theirs"] / seconds["ours"]
    return at_least(f"mini-batches {how}: PyG's DataLoader / ours", ratio, 1, note)


def _encodings(repeats: int) -> Row:
    """Laplacian encodings of 2 000 graphs at once, against one graph after the other."""
    generator = torch.Generator().manual_seed(0)
    recipe, _ = draw_recipe("basis", "covariate", generator, total=2000)
    packed = build_motif(recipe, generator)
    batch, graphs = packed.collate(), list(packed)
    seconds = medians(
        {
            "at once": lambda: laplacian_encoding(batch.edge_index, batch.num_nodes),
            "alone": lambda: [laplacian_encoding(g.edge_index, g.num_nodes) for g in graphs],
        },
        max(1, repeats // 2),
    )
    ratio = seconds["alone"] / seconds["at once"]
    return at_least("Laplacian encodings: one by one / at once", ratio, 2)


if __name__ == "__main__":
    for line in rows():
        print(line)
