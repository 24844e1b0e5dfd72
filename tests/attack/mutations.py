"""Files that are damaged or made to deceive, through whole commands: bytes, and the structure of JSON, safetensors and GGUF."""
import json
import shutil
import struct
from pathlib import Path
from random import Random

from world import ROOT, Row, Source, World, judge, leftovers

NUMBERS = [-1, 0, 1, 2, 3, 31, 33, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 1e308, 0.5, -0.0]
TEXTS = ["", "\0", "../x", "/etc/passwd", "x" * 5000, "\u001b[31m", "\ud7ff", "mxfp4", "nvfp4", "F32", "U8", "F8_E8M0", "model.safetensors"]
VALUES = [None, True, [], {}, [[[[[]]]]], {"a": {"b": {}}}]
MEMORY = 4 << 30  # bytes of address space that a command on a tiny file may ask for


def nodes(value, path=()) -> list:
    """Paths of all values in a document."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += nodes(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:16]):
            found += nodes(inner, (*path, i))
    return found


def change_json(document, dice: Random):
    """One value of the document replaced, removed, renamed, or taken from elsewhere in it."""
    paths = nodes(document)[1:]
    if not paths:
        return dice.choice(VALUES)
    path = dice.choice(paths)
    place = document
    for key in path[:-1]:
        place = place[key]
    old, what = place[path[-1]], dice.randrange(7)
    if what == 0:
        del place[path[-1]]
    elif what == 1 and isinstance(place, dict):
        place[dice.choice(TEXTS) or str(path[-1]) + "x"] = place.pop(path[-1])
    elif what == 2:
        other = document
        for key in dice.choice(paths):
            other = other[key]
        place[path[-1]] = json.loads(json.dumps(other))
    elif what == 3 and isinstance(old, int):
        place[path[-1]] = old + dice.choice([-1, 1, 32, -32]) if dice.random() < 0.5 else old * dice.choice([2, 16, 2**20])
    elif what == 4:
        place[path[-1]] = dice.choice(TEXTS)
    elif what == 5:
        place[path[-1]] = dice.choice(VALUES)
    else:
        place[path[-1]] = dice.choice(NUMBERS)
    return document


def change_bytes(data: bytes, dice: Random, near: int) -> bytes:
    at, what = dice.randrange(max(1, min(len(data), near))), dice.randrange(8)
    some = bytes(dice.randrange(256) for _ in range(dice.choice([1, 1, 2, 8])))
    if what == 0 and data:
        return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1:]
    if what == 1:
        return data[:at] + some + data[at + len(some):]
    if what == 2:
        return data[:at] + some + data[at:]
    if what == 3:
        return data[:at] + data[at + len(some):]
    if what == 4:
        return data[:dice.randrange(len(data) + 1)]
    if what == 5:
        return data + bytes(dice.choice([1, 7, 64, 5000]))
    if what == 6:
        number = dice.choice([n for n in NUMBERS if isinstance(n, int) and 0 <= n < 2**64])
        at -= at % 4
        return data[:at] + struct.pack("<Q", number)[:dice.choice([4, 8])] + data[at + dice.choice([4, 8]):]
    end = min(len(data), at + dice.choice([4, 16, 100]))
    return data[:end] + data[at:end] + data[end:]  # a part twice


def change_safetensors(data: bytes, dice: Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    text = json.dumps(change_json(json.loads(data[8:8 + size]), dice)).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + size:]


def change_file(path: Path, dice: Random) -> None:
    data = path.read_bytes()
    try:
        if path.suffix == ".json" and dice.random() < 0.7:
            changed = json.dumps(change_json(json.loads(data), dice)).encode()
        elif path.suffix == ".safetensors" and dice.random() < 0.5:
            changed = change_safetensors(data, dice)
        else:
            changed = change_bytes(data, dice, near=dice.choice([64, 4096, len(data)]))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):  # nothing there to change so, or changed before
        changed = change_bytes(data, dice, near=len(data))
    path.write_bytes(changed)


def files_of(folder: Path) -> list:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damage(folder: Path, dice: Random) -> None:
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        files = files_of(folder)
        if dice.random() < 0.03:
            dice.choice(files).unlink()
        elif dice.random() < 0.03:
            a, b = dice.choice(files), dice.choice(files)
            shutil.copyfile(a, b) if a != b else None
        else:
            change_file(dice.choice(files), dice)
        if not files_of(folder):
            return


def check_output(world: World, scratch: Path, words: list, ended) -> str | None:
    """After a command on a mutant: all or nothing, and what there is is sound."""
    hidden = leftovers(scratch)
    if hidden:
        return f"left {hidden}: {ended}"
    outs = [path for path in (scratch / "out", scratch / "out.gguf") if path.exists()]
    if words[0] == "lint":  # what is not sound yet stays, and the command says so
        return None
    if outs and ended.status != 0:
        return f"failed, yet there is {outs[0].name}: {ended}"
    if not outs:
        return None
    if words[0] == "convert":
        again = world.call("verify", outs[0], "--deep")
    elif words[0] == "unconvert" or words[0] in ("transcode", "merge", "quantize"):
        again = world.call("inspect", outs[0])
    else:
        return None
    return judge(again) or (f"the output of {ended} is not accepted: {again}" if again.status != 0 else None)


def commands_on(world: World, kind: str, target: Path, source: Source, scratch: Path) -> dict:
    out = scratch / "out"
    if kind == "source":
        moved = Source(target / source.path.name if source.path.suffix == ".gguf" else target, source.format, source.dialect)
        return world.commands(moved, scratch)
    if kind == "adapter":
        return {"merge": ["merge", source.path, target, "-o", out], "run": ["run", source.path, "--adapter", target, "--tokens", 2]}
    if kind == "plain":
        return {"quantize": ["quantize", target, "--format", "nvfp4", "-o", out],
                "quantize mxfp4": ["quantize", target, "--format", "mxfp4", "-o", out], "inspect": ["inspect", target]}
    return {"verify": ["verify", target], "verify deep": ["verify", target, "--deep"],
            "unconvert": ["unconvert", target, "-o", out, "--accept-losses"], "run": ["run", target, "--tokens", 2]}


def originals(world: World) -> list:
    """(kind, folder, source)."""
    found = [("source", source.folder, source) for source in world.sources]
    found += [("adapter", adapter, Source(path, "", "")) for path, adapter in world.adapters.items()]
    found += [("plain", world.plain.path, world.plain)]
    found += [("converted", folder, world.sources[0]) for folder in world.converted]
    for folder in sorted((ROOT / "testdata/producers").glob("*/*")):
        if folder.is_dir():
            found.append(("source", folder, Source(folder, "nvfp4" if "nvfp4" in folder.name.lower() else "mxfp4", "")))
    return found


def is_same_manifest(before: Path, after: Path) -> bool:
    """Whether the one thing that changed is the form of the manifest's text."""
    for path in files_of(before):
        other = after / path.relative_to(before)
        if not other.is_file() or other.read_bytes() != path.read_bytes():
            try:
                if path.name != "fp4moe.json" or json.loads(other.read_bytes()) != json.loads(path.read_bytes()):
                    return False
            except (ValueError, OSError):
                return False
    return True


def mutate(world: World, row: Row, number: int) -> None:
    dice = world.random("mutate", number)
    kind, folder, source = dice.choice(originals(world))
    with world.scratch() as scratch:
        target = scratch / "in"
        shutil.copytree(folder, target, copy_function=shutil.copyfile)
        damage(target, dice)
        lines = commands_on(world, kind, target, source, scratch)
        for name in dice.sample(sorted(lines), 2):
            words = lines[name]
            ended = world.call(*words, limits=[f"--as={MEMORY}"])
            finding = judge(ended) or check_output(world, scratch, words, ended)
            if not finding and kind == "converted" and words[0] == "verify" and ended.status == 0 and not is_same_manifest(folder, target):
                finding = f"a changed folder is verified: {ended}"
            row.add(finding and f"mutation {number}: {finding}", ended.id or f"exit {ended.status}")
            for out in (scratch / "out", scratch / "out.gguf"):
                shutil.rmtree(out, ignore_errors=True) if out.is_dir() else out.unlink(missing_ok=True)


def truncate(world: World, row: Row, number: int) -> None:
    """A file cut anywhere; every length comes up where there are tries enough."""
    dice = world.random("truncate", number)
    kind, folder, source = dice.choice([each for each in originals(world) if each[0] != "plain"])
    with world.scratch() as scratch:
        target = scratch / "in"
        shutil.copytree(folder, target, copy_function=shutil.copyfile)
        path = dice.choice(files_of(target))
        data = path.read_bytes()
        kept = dice.randrange(len(data)) if dice.random() < 0.5 else dice.randrange(min(len(data), 2000))
        path.write_bytes(data[:kept])
        lines = commands_on(world, kind, target, source, scratch)
        words = lines[{"source": "inspect", "adapter": "merge", "converted": "verify"}[kind]]
        ended = world.call(*words, limits=[f"--as={MEMORY}"])
        finding = judge(ended) or check_output(world, scratch, words, ended)
        # GGUF may end with the last tensor's bytes, without the padding; JSON without its last newline.
        is_padding = (path.suffix == ".gguf" and len(data) - kept < 64) or not data[kept:].strip()
        is_needed = path.suffix in (".safetensors", ".gguf") or kind == "converted"
        if not finding and ended.status == 0 and is_needed and not is_padding:
            finding = f"{path.name} of {len(data)} bytes cut to {kept} is accepted: {ended}"
        row.add(finding and f"truncation {number}: {finding}", ended.id or f"exit {ended.status}")


def text_field(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def bomb(world: World, row: Row, number: int) -> None:
    """Metadata that take many times their bytes in memory: a sparse GGUF file with one array of 94 million zeros, or of
    11.75 million empty strings. Refused before memory is taken; one within the limits is counted by --max-memory."""
    kind, each = [(0, 1), (8, 8)][number % 2]  # u8, string
    is_within = number % 4 > 1
    count = 1 << 22 if is_within else 94_000_000 // each
    source = next(source for source in world.sources if source.dialect == "gguf" and source.format == "mxfp4")
    data = source.path.read_bytes()
    fields = struct.unpack_from("<Q", data, 16)[0]
    with world.scratch() as scratch:
        path = scratch / "a.gguf"
        with open(path, "wb") as file:
            file.write(data[:16] + struct.pack("<Q", fields + 1))
            # The data move by a multiple of their alignment.
            file.write(text_field("big.list") + struct.pack("<IIQ", 9, kind, count))
            file.seek(count * each, 1)
            file.write(data[24:])
        convert = ["convert", path, "--layout", "as_loaded.mxfp4", "-o", scratch / "out", "--threads", 2, "--max-memory", "120MB"]
        for words in (["inspect", path], convert):
            ended = world.call(*words, limits=[f"--as={2 << 30}"])
            wanted = ("", "convert.memory")[words[0] == "convert"] if is_within and kind == 8 else "" if is_within else "gguf.array"
            finding = judge(ended)
            if not finding and ended.id != wanted:
                finding = f"expected {wanted or 'success'}: {ended}"
            row.add(finding and f"bomb {number}: {finding}", ended.id or f"exit {ended.status}")
