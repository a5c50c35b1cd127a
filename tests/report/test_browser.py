"""The page in a real browser: no error, no script, everything is visible, phones fit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape

import pytest

from gduq.report import build
from tests.report.cases import of_labels, of_values, page_of_three

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")

PROBE = """
<script>
const seen = {};
const visible = (e) => { const b = e.getBoundingClientRect(); return b.width > 5 && b.height > 5; };
for (const part of document.querySelectorAll("details")) part.open = true;
const pictures = [...document.querySelectorAll("svg[role=img]")];
seen.pictures = pictures.length;
seen.invisible = pictures.filter((e) => !visible(e) || e.getBBox().width < 5).length;
seen.images = [...document.images].filter((e) => e.naturalWidth === 0).length;
const wide = pictures.filter((e) => e.closest(".figures") && !e.closest(".small"));
seen.widths = wide.map((e) => e.getBoundingClientRect().width);
seen.text = document.querySelector("#verdict").innerText;
const out = document.createElement("pre"); out.id = "probe"; out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>
"""


def chromium(folder, page: str, *options: str) -> tuple[str, str]:
    """The document after its scripts ran, and what was written to the console."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-dev-shm-usage", "--enable-logging=stderr", f"--user-data-dir={folder / 'user'}",
        "--virtual-time-budget=2000", *options, "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(console)


def probe(dom: str) -> dict:
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, flags=re.S)
    assert found, "the probe did not run"
    return json.loads(unescape(found[1]))


def with_probe(page: str, script: str = PROBE) -> str:
    """The page without its rule that no script may run."""
    open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert open_page != page
    return open_page.replace("</body>", script + "</body>")


@pytest.mark.parametrize(
    "make", [page_of_three, lambda: build(of_values()), lambda: build(of_labels())]
)
def test_pictures_show_and_use_the_width(make, tmp_path):
    dom, console = chromium(tmp_path, with_probe(make()), "--window-size=1280,900")
    seen = probe(dom)
    assert console == ""
    assert seen["pictures"] >= 7
    assert (seen["invisible"], seen["images"]) == (0, 0)
    assert min(seen["widths"]) > 480  # two side by side
    assert "What to do." in seen["text"]
