"""Files of gduq as changed by somebody who knows how they are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor

from gduq._io import write_tensors


def split_up(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a safetensors file."""
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header: dict[str, Any], body: bytes) -> bytes:
    """A file of both."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def rewritten(
    path: Path,
    raw: bytes,
    words: Callable[[dict[str, str]], None] = lambda words: None,
    tensors: Callable[[dict[str, Tensor]], None] = lambda tensors: None,
) -> Path:
    """A file of gduq with other texts and tensors."""
    found, texts = load(raw), split_up(raw)[0]["__metadata__"]
    words(texts)
    tensors(found)
    write_tensors(path, found, texts)
    return path
