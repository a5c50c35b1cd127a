"""``gduq serve`` as a process of its own, and its page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from html import unescape

import pytest

import gduq
from gduq.serve.server import own_hosts
from tests.serve.cases import EVIL, SMILES, model, molecules
from tests.serve.devtools import Browser

pytest.importorskip("uvicorn", reason="needs gduq[serve]")
pytest.importorskip("rdkit")
httpx = pytest.importorskip("httpx")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    return gduq.save(
        model(),
        folder / "tox model",
        class_names=["small", EVIL],
        preprocessing={"targets": ["size"]},
    )


@contextmanager
def serving(bundle, how):
    """The address of a service in a process of its own, and how it is ended."""
    start = "from gduq.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", str(bundle), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        line = process.stdout.readline()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+) answers; Ctrl-C ends it\.\n", line)
        assert found, process.stderr.read()
        try:
            yield found[1]
        finally:
            process.send_signal(how)
            assert process.wait(60) == 0
        assert process.stderr.read() == "Stopped.\n"


@pytest.fixture(scope="module")
def address(bundle):
    with serving(bundle, signal.SIGINT) as found:
        yield found


@pytest.mark.slow
def test_sigterm_ends_it_as_ctrl_c_does(bundle):
    with serving(bundle, signal.SIGTERM) as found:
        assert httpx.get(f"{found}/health").json()["status"] == "ok"


def test_it_answers_as_predict_does(address):
    reply = httpx.post(f"{address}/predict", json={"smiles": SMILES}, timeout=60)
    p = gduq.predict(model(), molecules("classes")[: len(SMILES)])
    found = [answer["confidence"] for answer in reply.json()["answers"]]
    assert found == pytest.approx(p.confidence.tolist(), abs=1e-5)
    assert httpx.get(f"{address}/model").json()["name"] == "tox model"
    assert "server" not in reply.headers


def test_half_a_request_does_not_hold_the_others(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as open_end:
        open_end.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        assert httpx.get(f"{address}/health").json()["status"] == "ok"


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_the_page_in_a_browser(address, tmp_path):
    """Paste molecules, one of them bad and one of them hostile, and look at what is shown."""
    pasted = "\n".join(["CCO", "nonsense", "c1ccccc1O", EVIL])
    probe = f"document.getElementById('smiles').value = {json.dumps(pasted)};"
    probe += "document.getElementById('form').requestSubmit()"
    dom = chromium(address, tmp_path, probe)
    assert dom.count("<img ") == 2, "two drawings, and nothing that a text smuggled in"
    assert re.findall(r'data-width="(\d+)"', dom) == ["240", "240"], "both were drawn"
    assert "2 answered, 2 left out" in dom
    items = [unescape(text) for text in re.findall(r'<li class="bad">(.*?)</li>', dom)]
    assert items[0].startswith("line 2, nonsense: ")
    assert items[1].startswith(f"line 4, {EVIL}: ")
    assert "Predicts size, which is small or &lt;img" in dom
    heads = re.findall(r"<th>(.*?)</th>", dom)
    assert heads == ["class", "probability", "in the conformal set"] * 2
    assert dom.count("<article>") == 2, "one block per compound"
    cells = [unescape(text) for text in re.findall(r"<td>(.*?)</td>", dom)]
    assert {"small", EVIL, "confidence", "novelty", f"prob_{EVIL}"} <= set(cells)
    assert dom.count("<details>") == 2, "the rest is folded"


def chromium(address: str, folder, script: str) -> str:
    """The page's document after a script ran in it and all answers came, through DevTools."""
    with Browser(BROWSER, folder) as browser:
        browser.open(address)
        browser.run(script)
        browser.wait("document.getElementById('state').textContent.includes('answered')")
        browser.wait("[...document.images].every((e) => e.complete)")
        browser.run("for (const e of document.images) e.dataset.width = e.naturalWidth")
        assert browser.console == []
        return browser.run("document.body.outerHTML")


def test_addresses():
    assert own_hosts("127.0.0.1") == ["127.0.0.1", "localhost"]
    assert own_hosts("127.0.1.1", "MyBox") == ["127.0.0.1", "127.0.1.1", "localhost", "mybox"]
    assert own_hosts("0.0.0.0") is None
    assert "[::1]" in own_hosts("::1")
    assert own_hosts("192.168.0.1") is None
