"""A small SVG drawing: text, boxes, lines and arrows, readable on light and dark grounds."""
from __future__ import annotations

from html import escape

STYLE = """<style>text { font: 12px sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a } .bold { font-weight: 600 }
.title { font: 600 14px sans-serif } .mid { text-anchor: middle } .end { text-anchor: end } .inside { fill: #1f2328 }
.tiny text { font-size: 10px; text-anchor: middle; fill: #1f2328 }
.ground { fill: #fff } .line { stroke: #6e7781; stroke-width: 1.3; fill: none } .grid { stroke: #8884 } .frame { fill: none; stroke: #6e778199 }
.yes { fill: #d3f0dc; stroke: #1a7f37 } .no { fill: #fbe3e4; stroke: #cf222e } .ask { fill: #fff3cd; stroke: #9a6700 }
.blue { fill: #d6e7fb; stroke: #2a78d6 } .violet { fill: #e6dcf6; stroke: #7b5ea7 } .gray { fill: #e7eaee; stroke: #8c959f }
@media (prefers-color-scheme: dark) { text { fill: #e6e8eb } .small { fill: #a3abb5 } .inside { fill: #1f2328 } .small.inside { fill: #444c56 }
.ground { fill: #1e2129 } .line { stroke: #a3abb5 } }</style>"""


class Drawing:
    def __init__(self, width: int, height: int, title: str, shown: int = 0) -> None:
        """shown: how wide a page shows it; 0: as wide as the page."""
        size = f' width="{shown}" height="{shown * height // width}"' if shown else ""
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"{size} role="img">', f"<title>{escape(title)}</title>", STYLE,
                      '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                      '<path d="M0 0L8 4L0 8z" fill="#6e7781"/></marker></defs>', f'<rect class="ground" width="{width}" height="{height}"/>']

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{_class(kind)}>{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """A box with lines of text; the first one is bold where there are others."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>')
        top = y + height / 2 + 4.5 - 7.5 * (len(lines) - 1)
        for i, words in enumerate(lines):
            self.text(x + width / 2, top + 15 * i, words, "mid inside" + (" bold" if i == 0 and len(lines) > 1 else " small" if i else ""))

    def line(self, *points: tuple[float, float], arrow: bool = False, kind: str = "line") -> None:
        way = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="M{way}"{" marker-end=" + chr(34) + "url(#tip)" + chr(34) if arrow else ""}/>')

    def raw(self, part: str) -> None:
        self.parts.append(part)

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
