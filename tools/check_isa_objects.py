#!/usr/bin/env python3
"""Checks objects that are compiled for one instruction set.

The linker keeps one copy of every weak symbol (inline functions, templates), perhaps the one that
was compiled with the newest instructions; an older machine then stops at it. So such an object may
export nothing but its own kernels: no weak symbols, and only names of its own namespace.
"""
import argparse
import subprocess
import sys

WEAK = set("VvWwu")


def defined_symbols(nm, objects):
    """(object, kind, name) of every external symbol that the objects define."""
    listing = subprocess.run(
        [nm, "--extern-only", "--defined-only", "--demangle", "--print-file-name",
         "--format=posix", *objects],
        check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        path, _, rest = line.partition(": ")
        # "name kind value size"; a demangled name may hold spaces, the kind is a lone letter.
        words = rest.split(" ")
        for i in range(1, len(words)):
            if len(words[i]) == 1 and words[i].isalpha():
                yield path, words[i], " ".join(words[:i])
                break


def faults(symbols, namespace):
    for path, kind, name in symbols:
        if kind in WEAK:
            yield f"{path}: weak symbol {name}"
        elif not name.startswith(namespace + "::"):
            yield f"{path}: {name} is not in {namespace}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    symbols = list(defined_symbols(arguments.nm, arguments.objects))
    found = list(faults(symbols, arguments.namespace))
    for fault in found:
        print(fault)
    if not symbols:
        found.append("none")
        print("the objects define no external symbol: nothing was checked")
    print(f"{len(symbols)} symbols in {len(arguments.objects)} objects, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
