"""A headless browser that does as it is told, through the two pipes of Chromium's DevTools."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any


class Browser:
    """One page. Messages go to its descriptor 3 and come from 4, each ended by a zero byte."""

    def __init__(self, program: str, folder: Path) -> None:
        self.console: list[str] = []
        self._number, self._rest = 0, b""
        read_theirs, self._write = os.pipe()
        self._read, write_theirs = os.pipe()
        line = (
            f"{program} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
            f"--disable-background-networking --user-data-dir={folder / 'user'} "
            f"--remote-debugging-pipe 3<&{read_theirs} 4>&{write_theirs}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            pass_fds=(read_theirs, write_theirs),
            env={**os.environ, "HOME": str(folder)},
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)

    def __enter__(self) -> Browser:
        page = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log"):
            self._ask(f"{part}.enable")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def open(self, address: str) -> None:
        """Load a page."""
        self._ask("Page.navigate", url=address)
        self.wait(f"location.href.startsWith('{address}') && document.readyState == 'complete'")

    def run(self, script: str) -> Any:
        """What a script gives in the page."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until a condition holds."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.05)

    def _ask(self, method: str, **options: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": options}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            if found.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.console.append(json.dumps(found["params"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser is gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
