#!/usr/bin/env python3
"""Builds the documentation site into build/site/html: pages, search, every link checked.

    python tools/site.py        needs docs/site/requirements-docs.txt

Pages keep their places of the repository, so that links between them work in both. README.md is the first page. Links to
other files (an example, a record of a benchmark) get a copy of the file beside the pages; links to folders become text.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
PAGES = SITE / "pages"
EXPLORER = ROOT / "build" / "release" / "explorer" / "html"  # where `make explorer` built it
EXPLORERS_PAGE = Path("docs/explorer.md")
TOP = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
LINK_IN_NAV = {"LAYOUTS": "docs/layouts", "FORMATS": "docs/formats"}
CODE_IN_ROW = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
FENCE = re.compile(r"(^```.*?^```\s*$)", re.MULTILINE | re.DOTALL)


def staged_name(page: Path) -> Path:
    return Path("index.md") if page == Path("README.md") else page


def staged_link(page: Path, target: str) -> str | None:
    """The link as the site has it; None: it has no such thing."""
    path, _, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return target
    file = Path(os.path.normpath((ROOT / page).parent / path))
    if not file.is_file():
        return None if file.is_dir() else target  # what is not there stays, and the strict build reports it
    inside = file.relative_to(ROOT)
    if inside.suffix != ".md":
        (PAGES / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, PAGES / inside)
    link = os.path.relpath(staged_name(inside), staged_name(page).parent)
    return f"{link}#{anchor}" if anchor else link


def staged_text(page: Path) -> str:
    def replace(match: re.Match[str]) -> str:
        link = staged_link(page, match[2])
        return match[1].strip("[]") if link is None else f"{match[1]}({link})"

    text = (ROOT / page).read_text()
    if page == EXPLORERS_PAGE and EXPLORER.is_dir():
        title, rest = text.split("\n", 1)
        text = f"{title}\n\n[Open the explorer](../explorer/index.html){{ .md-button .md-button--primary }}\n{rest}"
    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else plain_pipes(LINK.sub(replace, part)) for part in parts)


def plain_pipes(text: str) -> str:
    """GitHub wants pipes in code of a table escaped; this Markdown shows the backslash."""
    return CODE_IN_ROW.sub(lambda code: code[0].replace("\\|", "|"), text)


def stage() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    found = sorted((ROOT / "docs").rglob("*.md"))
    for page in [Path(name) for name in TOP] + [file.relative_to(ROOT) for file in found]:
        target = PAGES / staged_name(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(staged_text(page))
    if EXPLORER.is_dir():
        shutil.copytree(EXPLORER, PAGES / "explorer")
    (PAGES / "docs" / "site").mkdir()
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(ROOT / "docs" / "site" / name, PAGES / "docs" / "site" / name)


def navigation() -> str:
    """mkdocs.yml with the pages of the folders that it names."""
    text = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
    for word, folder in LINK_IN_NAV.items():
        pages = sorted(file.relative_to(PAGES).as_posix() for file in (PAGES / folder).glob("*.md"))
        first = [page for page in pages if page.endswith("README.md")]
        text = text.replace(word, "[" + ", ".join(first + [page for page in pages if page not in first]) + "]")
    for name in ("docs_dir", "site_dir"):
        text = re.sub(rf"^{name}: .*$", f"{name}: {PAGES if name == 'docs_dir' else SITE / 'html'}", text, flags=re.MULTILINE)
    return text


def main() -> int:
    stage()
    config = SITE / "mkdocs.yml"
    config.write_text(navigation())
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config], check=False,
                          env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, stderr=subprocess.PIPE, text=True)
    print(*(line for line in done.stderr.splitlines() if not line.startswith("INFO")), sep="\n", end="", file=sys.stderr)
    if done.returncode == 0:
        print(f"{(SITE / 'html').relative_to(ROOT)}/index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
