"""Serve an FP4 model with vLLM and the plug-in of fp4moe, and ask it over HTTP.

    python examples/vllm_serve.py openai/gpt-oss-20b "What is MXFP4?" [options of vLLM's server]
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ask(url: str, model: str, question: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 16,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health").close()
            return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"the server ended with status {server.returncode}")


def main() -> None:
    model, question, *options = sys.argv[1:]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
         "--host", "127.0.0.1", "--port", str(port), *options]
    )  # fmt: skip
    try:
        wait(url, server)
        print(ask(url, model, question))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
