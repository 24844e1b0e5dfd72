#!/usr/bin/env python3
"""Puts the explorer's page together: the files of docs/site/explorer and the WebAssembly as a script.

    tools/explorer.py FP4MOE.WASM FOLDER

A page that is opened as a file may load scripts and nothing else, so the module travels as one: gzip, then base64.
"""
from __future__ import annotations

import base64
import gzip
import shutil
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "site" / "explorer"


def main() -> int:
    wasm, folder = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packed = base64.b64encode(gzip.compress(wasm.read_bytes(), 9, mtime=0)).decode()
    (folder / "fp4moe.wasm.js").write_text(f'"use strict";\nconst FP4MOE_WASM = "{packed}";\n')
    for file in sorted(PAGE.iterdir(), key=lambda each: each.name == "index.html"):  # index.html last: it is the target
        shutil.copyfile(file, folder / file.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
