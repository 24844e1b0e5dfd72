"""The explorer in a browser: answers byte-equal to the program's, every view, no request, no error, two widths.

FP4MOE_EXPLORER is the folder with its page, FP4MOE_PROGRAM the program; FP4MOE_SCREENSHOTS, where given, a folder that
screenshots are kept in.
"""
from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from chromium import Chromium

PAGE = Path(os.environ["FP4MOE_EXPLORER"]).resolve()
PROGRAM = os.environ["FP4MOE_PROGRAM"]
SHOTS = Path(os.environ.get("FP4MOE_SCREENSHOTS", "") or tempfile.mkdtemp())
TESTDATA = Path(__file__).resolve().parents[2] / "testdata"
READY = "document.documentElement?.dataset.ready"
LARGEST_SHARE = 1_500_000  # bytes of the page, as they travel
SLOWEST_START_MS = 5000  # on a machine that does other things, too
GPT_OSS = json.dumps({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
                      "num_experts_per_tok": 4, "num_hidden_layers": 24, "quantization_config": {"quant_method": "mxfp4"}})

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")


def url(fragment: str = "") -> str:
    return f"{PAGE.as_uri()}/index.html{fragment}"


@pytest.fixture(scope="module")
def browser():
    with Chromium() as made:
        yield made


@pytest.fixture
def page(browser):
    """The page, opened anew; afterwards nothing was requested from elsewhere and nothing went wrong."""
    browser.requests.clear()
    browser.errors.clear()
    browser.resize(1280, 900)
    browser.open("about:blank")
    browser.open(url(), READY)
    yield browser
    assert browser.errors == []
    assert [one for one in browser.requests if not one.startswith((PAGE.as_uri(), "data:", "about:"))] == []


def go(page: Chromium, fragment: str) -> None:
    page.evaluate(f"location.hash = {json.dumps(fragment)}; new Promise((done) => setTimeout(done, 50))")


def answer(page: Chromium) -> str:
    return page.evaluate("document.querySelector('[role=tabpanel]:not([hidden]) .answer').innerText")


def verdict(page: Chromium) -> str:
    return page.evaluate("document.querySelector('[role=tabpanel]:not([hidden]) .verdict').textContent")


# ---- byte-equal to the program


def question_of(case: dict) -> list[str]:
    platform = case["platform"]
    words = ["explain", "--json", "--mode", "compat", "--config", "case.json", "--format", case["format"],
             "--policy", case["version"], "--platform", platform["type"]]
    if platform["gfx"]:
        words += ["--gfx", platform["gfx"]]
    elif platform["capability"]:
        words += ["--capability", ".".join(map(str, platform["capability"]))]
    words.append("--lib=" + (",".join(name for name, has in platform["libs"].items() if has) or "none"))
    for name, value in case["env"].items():
        words += ["--env", f"{name}={value}"]
    return words


def golden_questions() -> list[tuple[str, list[str], dict[str, str]]]:
    found = []
    for name in ("oracle_cases.json", "oracle_cases-0.33.json"):
        for case in json.loads((TESTDATA / name).read_text())["cases"]:
            if case["kind"] == "select":
                found.append((case["id"], question_of(case), {"case.json": json.dumps({"config": case["config"]})}))
    return found


def other_questions() -> list[tuple[str, list[str], dict[str, str]]]:
    lines = ["plan gpt-oss-120b --device h100 --tp 8 --vllm latest", "plan deepseek-v3 --device b200 --ep 16 --vllm latest",
             "plan gpt-oss-120b --device h100 --tp 7 --vllm latest", "plan kimi-k2 --device mi355x --tp 8 --dp 2 --vllm 0.33.0",
             "explain gpt-oss-20b --device h100 --diff 2026-04-24 --vllm 0.33.0", "explain qwen3-30b-a3b --device b200 --all-devices",
             "layouts", "layouts marlin.mxfp4 --places w13:128x128", "layouts --places w2:256x256", "layouts --places 3x5",
             "numbers 0.7,-1.5,5,1e-45,3.4e38,inf,nan", "numbers 1,two", "list models", "list devices", "list policies", "list layouts",
             "explain nothing-known --device h100", "explain --device h200x", "plan"]
    files = {"config.json": GPT_OSS}
    asked = [(line, [*line.split(), "--json"], {}) for line in lines]
    asked += [(f"{verb} config.json", [verb, "config.json", "--device", "mi300x", "--vllm", "0.33.0", "--json"], files) for verb in ("explain", "plan")]
    asked += [("dense", ["explain", "config.json", "--device", "h100", "--json"], {"config.json": '{"model_type": "llama", "hidden_size": 4096}'}),
              ("broken", ["plan", "config.json", "--device", "h100", "--json"], {"config.json": '{"model_type": '})]
    return asked


def test_answers_are_the_programs_bytes(page, tmp_path):
    questions = golden_questions()
    assert len(questions) >= 200
    questions += other_questions()
    page.evaluate("loadProgram().then((program) => { window.program = program; })")
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""}
    selected = 0
    for name, words, files in questions:
        for file in tmp_path.iterdir():
            file.unlink()
        for file, text in files.items():
            (tmp_path / file).write_text(text)
        native = subprocess.run([PROGRAM, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        here = page.evaluate(f"program.run({json.dumps(words)}, {{files: {json.dumps(files)}}})")
        assert (here["status"], here["out"], here["err"]) == (native.returncode, native.stdout, native.stderr), name
        selected += '"outcome": "selected"' in native.stdout
    assert selected >= 100


def test_a_log_reaches_both_alike(page, tmp_path):
    log = "INFO Initializing a V1 LLM engine (v0.33.0) with config: model='openai/gpt-oss-20b', tensor_parallel_size=2\n"
    words = ["explain", "--log", "-", "--device", "b200", "--json"]
    page.evaluate("loadProgram().then((program) => { window.program = program; })")
    for text in (log, "hello"):
        native = subprocess.run([PROGRAM, *words], input=text, capture_output=True, text=True, check=False)
        here = page.evaluate(f"program.run({json.dumps(words)}, {{stdin: {json.dumps(text)}}})")
        assert (here["status"], here["out"]) == (native.returncode, native.stdout)


# ---- links


@pytest.mark.parametrize("fragment", ["#plan?model=%E0%&device=h100", "#%", "#constructor", "#which?nothing=1"])
def test_a_link_that_is_damaged_still_opens_the_page(page, fragment):
    go(page, fragment)
    assert verdict(page)


# ---- views


def test_which_backend(page):
    go(page, "#which?model=gpt-oss-20b&device=h100&rules=0.33.0")
    assert verdict(page) == "vLLM 0.33.0 runs gpt-oss-20b (mxfp4) on h100 with TRITON."
    text = answer(page)
    assert "--moe-backend marlin" in text and "needs capability 10.x; this device is 9.0" in text
    page.evaluate("[...document.querySelectorAll('.steps li')].find((one) => one.textContent.includes('MARLIN')).querySelector('button').click()")
    assert verdict(page).endswith("with MARLIN.")
    assert "backend=marlin" in page.evaluate("location.hash")
    command = page.evaluate("document.getElementById('command').textContent")
    assert command == "fp4moe explain gpt-oss-20b --device h100 --vllm 0.33.0 --backend marlin"


def test_two_policies_side_by_side(page):
    go(page, "#which?model=gpt-oss-20b&device=b200&rules=0.33.0&diff=2026-03-20")
    assert "Two policies side by side" in answer(page)
    assert page.evaluate("document.querySelectorAll('.sides .card').length") == 2


def test_a_config_and_a_log(page):
    for fragment, words in (
            ({"source": "config"}, "Drop, open or paste"), ({"source": "config", "config": GPT_OSS, "device": "b200"}, "runs config.json (mxfp4) on b200"),
            ({"source": "config", "config": '{"model_type": "llama"}'}, "The model has no routed experts."),
            ({"source": "config", "config": "{"}, "Error id"), ({"source": "log", "log": "hello", "device": ""}, "No line of vLLM"),
            ({"source": "log", "log": "ValueError: No MXFP4 MoE backend supports the deployment configuration", "device": "t4"}, "What the log says")):
        page.evaluate(f"location.hash = '#which?' + new URLSearchParams({json.dumps(fragment)}); new Promise((done) => setTimeout(done, 50))")
        assert words in answer(page), fragment


DROP = """(async () => {
  const file = new File([%s], %s), data = new DataTransfer();
  data.items.add(file);
  document.querySelector("#which [data-for=%s]").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
  await new Promise((done) => setTimeout(done, 300));
})()"""


def test_dropped_files_that_are_wrong_or_huge(page):
    go(page, "#which?source=config&device=b200")
    page.evaluate(DROP % (json.dumps(GPT_OSS), "'config.json'", "config"))
    assert "runs config.json (mxfp4) on b200" in answer(page)
    page.evaluate(DROP % ("new Uint8Array(50 * 1024 * 1024).fill(97)", "'model.safetensors'", "config"))
    assert verdict(page).startswith("This text has 50.00 MiB; at most 1.00 MiB are read here.")
    page.evaluate(DROP % ("new Uint8Array(1000).fill(255)", "'x.bin'", "config"))
    assert verdict(page).startswith("Not valid JSON")
    go(page, "#which?source=log&device=b200")
    line = "INFO nothing of interest\\n"
    begin = "INFO Initializing a V1 LLM engine (v0.33.0) with config: model='openai/gpt-oss-20b', tensor_parallel_size=2\\n"
    page.evaluate(DROP % (f'"{begin}" + "{line}".repeat(2000000)', "'vllm.log'", "log"))
    assert "gpt-oss-20b" in answer(page)
    assert len(page.evaluate("location.hash")) < 20_000, "a link holds no long log"


def test_plan(page):
    go(page, "#plan?model=gpt-oss-120b&device=h100&tp=8")
    assert verdict(page).startswith("The MoE weights of gpt-oss-120b take 7.60 GiB on each of 8 x h100")
    assert page.evaluate("document.querySelectorAll('.ranks > div').length") == 8
    go(page, "#plan?model=gpt-oss-120b&device=h100&tp=7")
    assert verdict(page) == "The intermediate size does not divide by the ranks."
    assert page.evaluate("[...document.querySelectorAll('#plan .picks button')].map((one) => one.textContent)") == ["--tp 6", "--tp 8", "--ep 7"]
    go(page, "#plan?model=kimi-k2&device=rtx4090")
    assert "do not fit" in verdict(page)


def test_layouts_by_keyboard_and_back(page):
    go(page, "#layouts?layout=marlin.mxfp4")
    where = "document.getElementById('where').textContent"
    page.evaluate("document.querySelector('#layouts canvas').focus()")
    for key in ["ArrowUp"] * 5 + ["ArrowLeft"] * 13 + ["ArrowRight"]:  # from row 5, column 12; the edge holds
        page.press(key)
    assert page.evaluate(where).startswith("Row 0, column 1: byte 2 (0x2), low nibble")
    page.evaluate("document.querySelectorAll('#layouts canvas')[1].focus()")  # the packed tensor
    page.press("ArrowLeft")
    assert page.evaluate(where).startswith("Row 8, column 8: byte 1 (0x1), high nibble")
    layouts = page.evaluate("[...document.querySelector('#layouts select').options].map((one) => one.value)")
    for layout in layouts:
        for part in ("codes", "scales"):
            go(page, f"#layouts?layout={layout}&rows=256&cols=256&part={part}")
            assert page.evaluate("document.querySelectorAll('#layouts canvas').length") >= 2, layout


def test_numbers(page):
    go(page, "#numbers?numbers=5")
    assert verdict(page) == "5 is a tie in FP4 (E2M1): 4 where ties go to even, 6 where they go away from zero."
    go(page, "#numbers?numbers=-0.7%2C%201e400%20x")
    assert "Invalid number" in answer(page)
    page.evaluate("document.querySelector('[data-fill=outlier]').click()")
    assert "As a block of 32" in answer(page)


def test_tabs_by_keyboard(page):
    page.evaluate("document.getElementById('tab-which').focus()")
    for name in ("plan", "layouts", "numbers", "which"):
        page.press("ArrowRight")
        assert page.evaluate("document.querySelector('[role=tabpanel]:not([hidden])').id") == name
        assert page.evaluate("document.activeElement.id") == f"tab-{name}"
        assert len(answer(page)) > 40


def test_every_field_has_a_label(page):
    assert page.evaluate("[...document.querySelectorAll('input, select, textarea')].filter((one) => one.labels.length === 0"
                         " && !one.getAttribute('aria-label')).map((one) => one.name)") == []


# ---- sizes, widths, other browsers and hosts


def test_small_and_soon(page):
    assert sum(file.stat().st_size for file in PAGE.iterdir()) < LARGEST_SHARE
    assert int(page.evaluate(READY)) < SLOWEST_START_MS


VIEWS = {"which": "#which?model=gpt-oss-20b&device=h100&rules=0.33.0", "plan": "#plan?model=gpt-oss-120b&device=h100&tp=8",
         "layouts": "#layouts?layout=marlin.mxfp4", "numbers": "#numbers"}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width, height, dark", [(1280, 900, False), (1280, 900, True), (390, 844, False)])
def test_fits_the_window(page, view, width, height, dark):
    page.resize(width, height, dark)
    go(page, VIEWS[view])
    page.screenshot(SHOTS / f"explorer-{view}-{width}{'-dark' if dark else ''}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('[role=tabpanel]:not([hidden]) .verdict') !== null")


def test_from_a_static_server(browser):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(PAGE))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.errors.clear()
        browser.open(f"http://127.0.0.1:{server.server_port}/index.html", READY)
        assert verdict(browser).startswith("vLLM")
        assert browser.errors == []
        server.shutdown()


def test_without_webassembly_it_says_so(browser):
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", {"source": "delete globalThis.WebAssembly;"})
    browser.open("about:blank")
    browser.open(url(), "document.getElementById('failure')?.hidden === false")
    assert browser.evaluate("document.getElementById('failure').textContent").startswith("This browser has no WebAssembly.")
    browser.call("Page.removeScriptToEvaluateOnNewDocument", added)
