"""The figure of ARCHITECTURE.md: the modules of src/fp4moe on their floors, drawn from the include check's table."""
from __future__ import annotations

from check_layers import ALLOWED

WIDTH, TOP, FLOOR, BOX, HEIGHT = 960, 34, 66, 134, 40


def modules() -> dict[str, set[str]]:
    """What each module includes directly; folders of a module count as the module."""
    edges: dict[str, set[str]] = {}
    for folder, row in ALLOWED.items():
        name = module_of(folder)
        edges.setdefault(name, set()).update(module_of(other) for other in row.split())
    for name in edges:
        edges[name] -= {name, "include"}
    return edges


def module_of(folder: str) -> str:
    """tensor/files and moe's parts stand on floors of their own; other parts belong to their module."""
    return folder if folder.startswith(("tensor/", "moe/")) else folder.split("/")[0]


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = list(edges[start])
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += edges[name]
    return found


def floors(edges: dict[str, set[str]]) -> dict[str, int]:
    """The longest way down from each module."""
    known: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in known:
            known[name] = 1 + max((floor(other) for other in edges[name]), default=-1)
        return known[name]

    for name in edges:
        floor(name)
    return known


def svg() -> str:
    edges = modules()
    level = floors(edges)
    last = max(level.values())
    rows = [[name for name in edges if level[name] == floor] for floor in range(last + 1)]
    place: dict[str, tuple[float, float]] = {}
    for floor, names in enumerate(rows):
        if floor:  # above what it stands on
            names.sort(key=lambda name: sum(place[other][0] for other in edges[name]) / len(edges[name]))
        for i, name in enumerate(names):
            place[name] = ((i + 0.5) * WIDTH / len(names), TOP + (last - floor) * FLOOR)
    out = []
    for name, below in edges.items():
        direct = below - set().union(*(reachable(edges, other) for other in below)) if below else set()
        for other in sorted(direct):
            (x1, y1), (x2, y2) = place[name], place[other]
            middle = (y1 + HEIGHT + y2) / 2
            out.append(f'<path d="M{x1:.0f} {y1 + HEIGHT:.0f} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"/>')
    for name, (x, y) in place.items():
        parts = [folder.split("/")[1] for folder in ALLOWED if folder.startswith(f"{name}/") and module_of(folder) == name]
        middle = y + HEIGHT / 2
        out.append(f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HEIGHT}" rx="5"/>')
        out.append(f'<text class="name" x="{x:.0f}" y="{middle + (0 if parts else 5):.0f}">{name}</text>')
        if parts:
            out.append(f'<text x="{x:.0f}" y="{middle + 14:.0f}">{" ".join(parts)}</text>')
    height = TOP + last * FLOOR + HEIGHT + 12
    style = ("text{font:11px sans-serif;fill:#57606a;text-anchor:middle}.name{font:600 14px sans-serif;fill:#1f2328}"
             "rect{fill:#eef3fa;stroke:#2a78d6}path{fill:none;stroke:#8c959f;stroke-width:1.2}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
            f"<title>Modules of src/fp4moe: a line leads down to what may be included</title><style>{style}</style>"
            f'<rect x="0" y="0" width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>'
            f'<text x="{WIDTH / 2}" y="18">A module includes only what lines lead down to. Small: its parts.</text>'
            + "".join(out) + "</svg>\n")
