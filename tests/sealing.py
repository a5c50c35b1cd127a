"""Files of gduq as changed by somebody who knows how to seal them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from gduq import tensorfile


def split_up(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a safetensors file."""
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header: dict[str, Any], body: bytes) -> bytes:
    """A file of both, with a seal that fits."""
    header["__metadata__"]["seal"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    raw = len(text).to_bytes(8, "little") + text + body
    return raw.replace(b"0" * 64, hashlib.sha256(raw).hexdigest().encode(), 1)


def rewritten(
    path: Path,
    raw: bytes,
    words: Callable[[dict[str, str]], None] = lambda words: None,
    tensors: Callable[[dict[str, Tensor]], None] = lambda tensors: None,
) -> Path:
    """A file of gduq with other texts and tensors."""
    found, texts = tensorfile.loads(raw)
    words(texts)
    tensors(found)
    tensorfile.write(path, found, texts)
    return path
