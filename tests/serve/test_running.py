"""``gduq serve`` as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.resources import files

import pytest

import gduq
from tests.serve.cases import EVIL, SMILES, model, molecules

pytest.importorskip("uvicorn", reason="needs gduq[serve]")
pytest.importorskip("rdkit")
httpx = pytest.importorskip("httpx")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    return gduq.save(
        model(),
        folder / "tox model",
        class_names=["small", EVIL],
        preprocessing={"targets": ["size"]},
    )


LINE = (  # of log
    r"\d{4}-\d\d-\d\d [\d:,]+ INFO [0-9a-f]{16} (GET|POST) /\S* 200"
    r"( rows=15 abstained=\d+ rejected=0)? ms=[\d.]+"
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
        *log, last = process.stderr.read().splitlines()
        assert last == "Stopped."
        assert all(re.fullmatch(LINE, line) for line in log), log


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


def test_the_page_writes_text_only():
    """A name or a SMILES text that holds markup stays a text."""
    page = files("gduq.serve").joinpath("page.html.jinja").read_text(encoding="utf-8")
    script = page.partition("<script>")[2]
    assert "textContent" in script
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
