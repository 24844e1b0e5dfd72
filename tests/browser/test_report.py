"""A report in a real browser: Debian's chromium reads, draws and prints it without any request."""
from __future__ import annotations

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
PROGRAM = os.environ["FP4MOE_PROGRAM"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

PNG, PDF = b"\x89PNG", b"%PDF"


class Facts(HTMLParser):
    """Headings, links and images of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.figures = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.figures += tag == "svg"
        self.ids += [given["id"] or ""] if "id" in given else []
        self.targets += [given[key] or "" for key in ("href", "src") if key in given]


def browse(page: Path, folder: Path, *words: str) -> str:
    """What the browser prints; it may reach nothing but the file."""
    result = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", *words, page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True, cwd=folder)
    return result.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    model, out = folder / "model", folder / "report.html"
    subprocess.run([PROGRAM, "synth", "--model", "gpt-oss-20b", "--layers", "2", "--experts", "4", "--hidden", "128",
                    "--intermediate", "64", "-o", model], check=True, capture_output=True)
    subprocess.run([PROGRAM, "report", model, "--device", "h100,mi355x", "--tokens", "2", "-o", out], check=True,
                   capture_output=True)
    return out


def test_the_page_has_its_sections_and_figures(page: Path) -> None:
    dom = browse(page, page.parent, "--dump-dom")
    facts = Facts(dom)
    assert facts.ids == ["identity", "findings", "scales", "devices", "numerics"]
    assert facts.targets == [f"#{each}" for each in facts.ids], "nothing is loaded from elsewhere"
    assert facts.figures > 10
    for fact in ("gpt-oss", "0 errors", "(mxfp4) on h100 with", "needs rocm; this is cuda", "within"):
        assert fact in dom


@pytest.mark.parametrize("width", [400, 1200])
def test_it_is_drawn_on_narrow_and_wide_screens(page: Path, width: int) -> None:
    picture = page.parent / f"{width}.png"
    browse(page, page.parent, f"--screenshot={picture}", f"--window-size={width},1600")
    assert picture.read_bytes()[:4] == PNG
    assert picture.stat().st_size > 20_000, "an empty page is smaller"


def test_it_can_be_printed(page: Path) -> None:
    paper = page.parent / "report.pdf"
    browse(page, page.parent, f"--print-to-pdf={paper}")
    assert paper.read_bytes()[:4] == PDF
    assert paper.stat().st_size > 20_000
