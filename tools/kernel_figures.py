"""The figures of docs/cuda.md and docs/cuda-kernels.md: which kernels run, and what runs when inside them."""
from __future__ import annotations

from drawing import Drawing

LEFT, ROW, WIDTH = 142, 34, 960
# (from, to) are shares of the time shown; figures show order, not measured times.
Bar = tuple[float, float, str, str]


def timeline(title: str, rows: list[tuple[str, list[Bar]]], arrows: list[tuple[int, float, int, float]] = (), note: str = "") -> str:
    """Roles down, time across. An arrow leads from (row, time) to (row, time)."""
    height = 44 + ROW * len(rows) + (24 if note else 8)
    drawing = Drawing(WIDTH, height, title)
    drawing.text(LEFT, 20, title, "title")
    drawing.text(WIDTH - 12, 20, "time →", "small end")

    def x_of(share: float) -> float:
        return LEFT + share * (WIDTH - LEFT - 12)

    for i, (role, bars) in enumerate(rows):
        y = 32 + ROW * i
        drawing.text(LEFT - 10, y + 19, role, "end bold")
        drawing.line((LEFT, y + ROW - 2), (WIDTH - 12, y + ROW - 2), kind="grid")
        for begin, end, kind, words in bars:
            drawing.box(x_of(begin) + 1, y + 3, x_of(end) - x_of(begin) - 2, ROW - 9, kind, words)
    for row, begin, other, end in arrows:
        down = other > row
        drawing.line((x_of(begin), 32 + ROW * row + (ROW - 6 if down else 3)), (x_of(end), 32 + ROW * other + (3 if down else ROW - 6)), arrow=True)
    if note:
        drawing.text(LEFT, height - 8, note, "small")
    return str(drawing)


def decode() -> str:
    return timeline("The decode kernel: one launch, one block on each SM", [
        ("route warps", [(0, .12, "violet", "top-k"), (.12, .27, "violet", "list assignments")]),
        ("loader warp", [(.27, .58, "gray", "weights of GEMM1 → 3 stages"), (.58, .82, "gray", "weights of GEMM2")]),
        ("math warps", [(0, .27, "gray", "tokens → shared memory"), (.31, .60, "blue", "dequantize, mma"), (.60, .67, "ask", "wait h"), (.67, .85, "blue", "dequantize, mma")]),
        ("epilogue warps", [(.40, .64, "yes", "sum, activation → h"), (.70, .88, "yes", "sum → y")]),
        ("all warps", [(.88, 1, "yes", "final sum")]),
    ], [(0, .275, 1, .285), (1, .30, 2, .32), (3, .635, 2, .665)], "An arrow: what the later step waits for. h and y go to other blocks through global memory as (number, launch number) words.")


def launches() -> str:
    return timeline("A call of many tokens: launches that overlap", [
        ("route", [(0, .18, "violet", "top-k, counts, rows")]),
        ("gather", [(.12, .30, "gray", "rows → tiles")]),
        ("grouped GEMM", [(.14, .28, "ask", "first weights"), (.28, .60, "blue", "GEMM1 work tiles"), (.60, .90, "blue", "GEMM2 work tiles")]),
        ("combine", [(.80, .92, "yes", "early columns"), (.92, 1, "yes", "late")]),
    ], [(0, .175, 1, .185), (1, .29, 2, .30)], "gather runs for tiles of more than 88 tokens. GEMM2 of a token tile starts when GEMM1 of that tile is complete, not when all of GEMM1 is.")


def grouped_gemm() -> str:
    return timeline("The grouped GEMM on Hopper: one persistent block on each SM", [
        ("loader warp", [(0, .30, "gray", "weights → stages"), (.30, .62, "gray", "next work tile"), (.62, .90, "gray", "next")]),
        ("fetch warps", [(0, .32, "gray", "token rows → stages"), (.32, .64, "gray", "next work tile"), (.64, .90, "gray", "next")]),
        ("math warpgroups", [(.06, .36, "blue", "dequantize to BF16, wgmma"), (.36, .44, "yes", "epilogue"), (.44, .72, "blue", "dequantize, wgmma"), (.72, .80, "yes", "epilogue"), (.80, 1, "blue", "dequantize")]),
        ("gather warp", [(.02, .50, "violet", "token rows of later tiles (bf16 tokens)")]),
        ("signal warp", [(.44, .52, "ask", "stored"), (.80, .88, "ask", "stored")]),
    ], [(1, .05, 2, .07), (2, .435, 4, .455)], "Stages have a full barrier (loader, fetch → math) and an empty barrier (math → loader, fetch). The signal lets GEMM2 of that tile begin.")


def sm80() -> str:
    drawing = Drawing(WIDTH, 318, "The grouped GEMM since Ampere: the way of weights and tokens to the tensor cores")
    for top, name, weights, tokens in (
            (0, "up to 64 tokens: bound by memory", ["global memory", "registers, 8 steps ahead", "A fragments"], ["global memory", "shared memory, 3 stages", "B fragments"]),
            (158, "up to 128 tokens: bound by tensor cores", ["global memory", "16 bytes a lane, a stage", "A fragments"], ["global memory", "shared memory, 2-4 stages", "B fragments"])):
        drawing.text(14, top + 22, name, "title")
        for y, row, kind, steps in ((top + 36, weights, "violet", ["ld.global" if top == 0 else "cp.async", "dequantize"]), (top + 94, tokens, "gray", ["cp.async", "ldmatrix"])):
            drawing.text(14, y + 24, "weights" if kind == "violet" else "tokens", "bold")
            for i, words in enumerate(row):
                drawing.box(76 + i * 236, y, 160 if i != 1 else 172, 40, kind, words)
                if i < 2:
                    drawing.line((76 + i * 236 + (160 if i != 1 else 172), y + 20), (76 + (i + 1) * 236 - 2, y + 20), arrow=True)
                    drawing.text(76 + i * 236 + 160 + (38 if i == 0 else 44), y + 13, steps[i], "small mid")
            drawing.line((708, y + 20), (742, top + 85), arrow=True)
        drawing.box(744, top + 66, 92, 40, "blue", "mma.sync", "f32 sums")
        drawing.line((836, top + 86), (864, top + 86), arrow=True)
        drawing.box(866, top + 66, 82, 40, "yes", "epilogue")
    return str(drawing)


def paths() -> str:
    asks = [("At most 16 tokens?", "standard rows, summed output, no adapters,", "experts fit into shared memory"),
            ("FP8 per token or block, MXFP4?", "≥ 24 or 96 tokens an expert, no adapters,", "gate with SwiGLU or SiLU"),
            ("Token tiles of at most 88?", "activation in the epilogue of GEMM1,", "≤ 8192 assignments, ≤ 640 experts"),
            ("Everything else", "up to 2,097,152 assignments at once", "")]
    answers = [("decode", [("decode", "routing, both GEMMs, activation, sum")]),
               ("fp8", [("route", "top-k"), ("gather_fp8", "rows → FP8"), ("GEMM1", "activation"), ("quantize h", "h → FP8"), ("GEMM2", ""), ("combine", "sum")]),
               ("rows, some", [("route", "top-k"), ("grouped GEMM", "reads rows itself"), ("combine", "sum")]),
               ("rows, many", [("route", "top-k"), ("gather", "rows → tiles"), ("grouped GEMM", "1, or 2 + activate"), ("combine", "sum")])]
    drawing = Drawing(WIDTH, 108 * len(asks) + 6, "Which kernels a call on Hopper runs")
    for i, (ask, (name, kernels)) in enumerate(zip(asks, answers, strict=True)):
        is_last = i + 1 == len(asks)
        y = 14 + i * 108
        drawing.box(14, y, 290, 78, "gray" if is_last else "ask", *[line for line in ask if line])
        drawing.line((304, y + 39), (360, y + 39), arrow=True)
        if not is_last:
            drawing.text(330, y + 33, "yes", "small mid")
            drawing.line((159, y + 78), (159, y + 106), arrow=True)
            drawing.text(168, y + 97, "no", "small")
        drawing.text(364, y + 14, f"{name}: {len(kernels)} launch{'es' if len(kernels) > 1 else ''}", "bold")
        width = 586 / len(kernels) - 14
        for j, (kernel, does) in enumerate(kernels):
            x = 364 + j * (width + 14)
            drawing.box(x, y + 22, width, 42, "blue" if "GEMM" in kernel or kernel == "decode" else "violet", *filter(None, (kernel, does)))
            if j:
                drawing.line((x - 14, y + 43), (x - 1, y + 43), arrow=True)
    return str(drawing)


FIGURES = {"cuda-paths.svg": paths, "cuda-decode.svg": decode, "cuda-launches.svg": launches, "cuda-grouped-gemm.svg": grouped_gemm, "cuda-sm80.svg": sm80}
