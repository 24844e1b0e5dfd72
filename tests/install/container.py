#!/usr/bin/env python3
"""What can be said of the Containerfile without an engine: its instructions, that what it copies is there, that
packages come from tools/packages.sh alone, and that what the ignore file lets through can be configured.

    tests/install/container.py SOURCE_FOLDER CXX
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"}


def instructions(text):
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        yield word, rest.strip()


def allowed(source):
    """The first parts of paths that the ignore file, which names all it lets through, lets through."""
    lines = [line for line in (source / ".containerignore").read_text().splitlines() if line and line[0] != "#"]
    if lines[0] != "*" or any(line[0] != "!" for line in lines[1:]):
        raise ValueError(".containerignore: everything is left out, and the rest let through by name")
    return [line[1:] for line in lines[1:]]


def problems(source, compiler):
    if (source / ".containerignore").read_text() != (source / ".dockerignore").read_text():
        yield ".dockerignore is not .containerignore"
    names = allowed(source)
    yield from (f".containerignore lets {name} through, which is not there" for name in names if not (source / name).exists())
    stages, runs, entry = [], [], None
    for word, rest in instructions((source / "Containerfile").read_text()):
        if word not in KNOWN:
            yield f"no such instruction: {word}"
        if word == "FROM":
            stage = re.fullmatch(r"(debian:12-slim|scratch)(?: AS (\w+))?", rest)
            stages.append(stage and stage.group(2))
            if not stage:
                yield f"FROM {rest}: neither Debian 12 nor scratch"
        if word == "RUN":
            runs += re.split(r"\s*&&\s*", rest)
        if word in ("ENTRYPOINT", "CMD"):
            entry = json.loads(rest) if word == "ENTRYPOINT" else entry
            json.loads(rest)
        if word == "COPY":
            words = rest.split()
            option = words[0] if words[0].startswith("--") else None
            if option and option not in [f"--from={stage}" for stage in stages[:-1] if stage]:
                yield f"COPY {option}: no such stage"
            for copied in words[:-1] if not option else []:
                if not (source / copied).exists() or (copied != "." and copied.split("/")[0] not in names):
                    yield f"COPY {copied}: not there, or left out by .containerignore"
    for run in runs:
        program = run.split()[0]
        if program.startswith("tools/") and not os.access(source / program, os.X_OK):
            yield f"RUN {program}: no such program"
        if "apt-get" in run:
            yield f"RUN {run}: packages are those of tools/packages.sh"
    if "tools/packages.sh build" not in runs:
        yield "tools/packages.sh build is not run"
    builds = [run.split() for run in runs if run.startswith("tools/build.sh ")]
    if stages[-1:] != [None] or entry != ["/fp4moe"] or len(builds) != 1:
        yield "the last stage is not one program made by tools/build.sh"
        return
    with tempfile.TemporaryDirectory() as context:
        for name in names:
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy2
            pathlib.Path(context, name).parent.mkdir(parents=True, exist_ok=True)
            copy(source / name, pathlib.Path(context, name))
        options = [word for word in builds[0] if word.startswith("-D")]
        done = subprocess.run(["cmake", "--preset", builds[0][1], f"-DCMAKE_CXX_COMPILER={compiler}", "-DFP4MOE_BUILD_MB=0",
                               *options],
                              cwd=context, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            yield f"what .containerignore lets through cannot be configured:\n{done.stderr}"
        else:
            built = subprocess.run(["ninja", "-C", f"build/{builds[0][1]}", "-n", builds[0][2]],
                                   cwd=context, text=True, capture_output=True, check=False)
            if built.returncode != 0:
                yield f"there is no target {builds[0][2]}:\n{built.stdout}"


def main():
    found = list(problems(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]))
    print("\n".join(found) if found else "the Containerfile is sound; it was not built")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
