"""MNIST as superpixel graphs: files, cutting, colours, rotation, noise."""

from __future__ import annotations

import gzip
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from gduq.errors import InputError
from gduq_reproduction.datasets import images
from gduq_reproduction.datasets.images import (
    ANGLES,
    NOISE,
    colour_cut,
    load_cmnist,
    load_rotmnist,  # fmt: skip
    neighbours,
    read_mnist,
    segment,
    superpixels,
)

needs_skimage = pytest.mark.skipif(not find_spec("skimage"), reason="needs the images extra")

# GOOD's counts: train, id_val, id_test, ood_val, ood_test
COUNTS = {
    "covariate": [42000, 7000, 7000, 7000, 7000],
    "concept": [29400, 6300, 6300, 14000, 14000],
    "no_shift": [42000, 14000, 14000],
}


def blobs(count: int, seed: int = 0) -> np.ndarray:
    """Smooth spots on black, as digits are."""
    centres = np.random.default_rng(seed).uniform(8, 20, (count, 2))
    down, across = np.indices((28, 28))
    distance = (down - centres[:, :1, None]) ** 2 + (across - centres[:, 1:, None]) ** 2
    return (255 * np.exp(-distance / 20)).astype(np.uint8)


def packed(array):
    """An IDX file: a header of a number and the lengths of the axes, then bytes."""
    return gzip.compress(bytes(4 + 4 * array.ndim) + array.tobytes())


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """An MNIST of 60 + 10 images; returns the cache folder."""
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 60), ("t10k", 10)):
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(packed(blobs(count, seed=count)))
        digits = np.arange(count, dtype=np.uint8) % 10
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed(digits))
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path / "data"))
    for name, value in (("_TRAIN", 60), ("_TEST", 10), ("_ID_VAL", 5)):
        monkeypatch.setattr(images, name, value)
    read_mnist.cache_clear()
    return tmp_path / "cache"


@pytest.mark.parametrize("content", [packed(blobs(3))[:-40], b"no gzip", packed(blobs(3))])
def test_damaged_image_files(tiny, content):
    path = tiny.parent / "data" / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_mnist("images", str(tiny))
    assert path.name in str(caught.value)


# -- one image -----------------------------------------------------------------------------------


@needs_skimage
def test_means_and_centres_against_skimage():
    """Region properties of scikit-image itself are the reference."""
    from skimage.measure import regionprops
    from skimage.segmentation import slic

    image = blobs(1, seed=4)[0] / 255.0
    regions = slic(image, n_segments=75, compactness=0.25, channel_axis=None, start_label=1)
    props = regionprops(regions)
    means = [image[regions == prop.label].mean() for prop in props]
    grey, centre = segment(image)
    expected = np.array([prop.centroid for prop in props])
    assert np.allclose(grey, means)
    assert np.allclose(centre, (expected[:, ::-1] + 0.5) / 28)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(1, 10), st.integers(0, 1000))
def test_nearest_neighbours_against_a_tree(n, k, seed):
    points = np.random.default_rng(seed).random((n, 2))
    edges = set(map(tuple, neighbours(points, k).T.tolist()))
    take = min(k, n - 1)
    _, nearest = cKDTree(points).query(points, k=range(1, take + 2))
    wanted = {(i, int(j)) for i in range(n) for j in nearest[i][1:]} if take else set()
    assert edges == wanted | {(j, i) for i, j in wanted}


@needs_skimage
def test_rotation_is_counter_clockwise_and_comes_before_cutting():
    found = superpixels(blobs(2), torch.zeros(2), degrees=90)
    wanted = superpixels(np.rot90(blobs(2), axes=(1, 2)), torch.zeros(2))
    assert all(torch.equal(one.x, two.x) for one, two in zip(found, wanted, strict=True))


# -- colours -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    return torch.randint(10, (70_000,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shift", COUNTS)
def test_counts_and_colours_of_good(digits, shift):
    cut, colour, palette = colour_cut(digits, shift)
    assert [len(rows) for rows in cut.values()] == COUNTS[shift]
    assert torch.equal(torch.cat(list(cut.values())).sort().values, torch.arange(70_000))
    assert len(palette.unique(dim=0)) == {"covariate": 7, "concept": 10, "no_shift": 1}[shift]
    if shift == "covariate":
        assert colour[torch.cat(list(cut.values())[:3])].bincount().tolist() == [11_200] * 5
        assert [set(colour[cut[n]].tolist()) for n in ("ood_val", "ood_test")] == [{5}, {6}]


def test_concept_colours_follow_the_digit(digits):
    """Agreement is rho + (1 - rho) / 10; the training pool mixes five values of rho."""
    cut, colour, _ = colour_cut(digits, "concept")
    pool = torch.cat([cut[name] for name in ("train", "id_val", "id_test")])
    for rows, rho in ((pool, 0.85), (cut["ood_val"], 0.3), (cut["ood_test"], 0.0)):
        agree = (colour[rows] == digits[rows]).double().mean().item()
        expected = rho + (1 - rho) / 10
        assert abs(agree - expected) < 3 * (expected * (1 - expected) / len(rows)) ** 0.5


# -- loaders, on seventy blobs -------------------------------------------------------------------


@needs_skimage
@pytest.mark.parametrize("shift", COUNTS)
def test_cmnist(tiny, shift):
    splits = load_cmnist(shift, tiny)
    array, labels = read_mnist("images", tiny), torch.from_numpy(read_mnist("labels", tiny)).long()
    cut, colour, palette = colour_cut(labels, shift)
    for name, view in splits:
        assert torch.equal(view.target, labels[cut[name]])
        assert torch.equal(splits.domains[name], colour[cut[name]])
        for row, graph in zip(cut[name].tolist()[:3], view.graphs, strict=False):
            (plain,) = superpixels(array[[row]], labels[[row]])
            assert torch.allclose(graph.x, plain.x[:, :1] * palette[colour[row]])
            assert torch.equal(graph.pos, plain.x[:, 1:])
            assert torch.equal(graph.edge_index, plain.edge_index)


@needs_skimage
def test_rotated(tiny):
    splits = load_rotmnist("rotation", tiny)
    assert [len(view) for _, view in splits] == [55, 5, 10, 10]
    assert list(splits.severities) == [f"rotation={angle}" for angle in ANGLES]
    assert splits.ood_test is splits.severities["rotation=40"]
    assert splits.domains["ood_test"].tolist() == [40.0] * 10
    array, labels = read_mnist("images", tiny), torch.from_numpy(read_mnist("labels", tiny)).long()
    for angle in ANGLES:
        graphs = splits.severities[f"rotation={angle}"].graphs
        expected = superpixels(array[60:], labels[60:], degrees=angle)
        for one, two in zip(graphs, expected, strict=True):
            assert all(torch.equal(one[key], two[key]) for key in ("x", "edge_index", "y"))


@needs_skimage
def test_noisy(tiny):
    splits = load_rotmnist("noise", tiny, seed=1)
    assert list(splits.severities) == [f"noise={std}" for std in NOISE]
    clean = torch.cat([graph.x for graph in splits.id_test.graphs])
    for std in NOISE:
        noisy = torch.cat([graph.x for graph in splits.severities[f"noise={std}"].graphs])
        change = noisy - clean
        assert torch.equal(change[:, 1:], torch.zeros_like(change[:, 1:]))
        assert abs(change[:, 0].mean()) < 3 * std / len(change) ** 0.5
        assert abs(change[:, 0].std() / std - 1) < 3 / (2 * len(change)) ** 0.5
