"""The SST-2 files: ``sentence<TAB>label``, three of them, all labelled."""

from __future__ import annotations

import hashlib
import shutil
import urllib.request
import zipfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor

from gduq.paper.datasets.raw import damaged, raw_file

__all__ = ["SST2", "read_sentences", "read_sst2", "sst2_files"]

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
