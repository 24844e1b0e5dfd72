"""The site in a browser: its search works from a file and from a server, nothing is requested from elsewhere, pages fit.

FP4MOE_SITE is the folder that tools/site.py built.
"""
from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

from chromium import Chromium

SITE = Path(os.environ["FP4MOE_SITE"]).resolve()
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html") if "explorer" not in page.parts and page.name != "404.html")
READY = "document.readyState === 'complete' && document.documentElement.classList.contains('js')"
# Wider than the window, and in nothing that scrolls by itself.
TOO_WIDE = """[...document.querySelectorAll('article *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1
              && !one.closest('.md-typeset__scrollwrap, pre, .highlight')).map((one) => one.outerHTML.slice(0, 80))"""

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")


@pytest.fixture(scope="module")
def browser():
    with Chromium() as made:
        yield made


@pytest.fixture(scope="module")
def server():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE))) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


@pytest.mark.parametrize("from_file", [True, False])
def test_the_search_finds_a_page_and_nothing_leaves(browser, server, from_file):
    base = SITE.as_uri() if from_file else server
    browser.requests.clear()
    browser.errors.clear()
    browser.resize(1280, 900)
    browser.open(f"{base}/docs/files.html", READY)
    browser.evaluate("document.querySelector('[data-md-toggle=search]').click(); document.querySelector('.md-search__input').focus()")
    browser.call("Input.insertText", {"text": "E2M1 codes"})
    browser.press("Shift")
    browser.wait_for("document.querySelector('.md-search-result__link')")
    found = browser.evaluate("[...document.querySelectorAll('.md-search-result__link')].map((one) => one.href)")
    assert any("docs/formats/e2m1.html" in link for link in found)
    assert browser.errors == []
    assert [one for one in browser.requests if not one.startswith((base, "data:", "about:"))] == []


@pytest.mark.parametrize("dark", [True, False])
def test_the_colors_follow_the_system(dark):
    with Chromium() as browser:  # the site remembers a choice
        browser.resize(1280, 900, dark)
        browser.open(f"{SITE.as_uri()}/index.html", READY)
        browser.wait_for(f"document.body.dataset.mdColorScheme === '{'slate' if dark else 'default'}'")


def test_pages_fit_windows_of_computers_and_phones(browser):
    wrong = {}
    for page in PAGES:
        browser.open(f"{SITE.as_uri()}/{page}", READY)
        for width in (1280, 390):
            browser.resize(width, 850)
            browser.wait_for(f"innerWidth === {width}")
            if found := browser.evaluate(TOO_WIDE):
                wrong[f"{page}, {width} pixels"] = found[:3]
        if browser.evaluate("[...document.images].some((one) => one.complete && one.naturalWidth === 0)"):
            wrong[page] = "a figure is missing"
    assert wrong == {}
    assert len(PAGES) > 60
