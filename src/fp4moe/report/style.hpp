// How a report looks: light, dark as the reader's system says, and print.
#pragma once
#include <string_view>

namespace fp4moe::report {

inline constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark;
  --page: #ffffff; --text: #1b1f24; --soft: #57606a; --line: #d8dee4; --panel: #f6f8fa;
  --accent: #0b62a4; --good: #1a7f37; --bad: #b42318; --warn: #9a6700;
  --good-back: #dafbe1; --bad-back: #ffe4e0; --warn-back: #fff3c4;
  --h0: #eef4fb; --h1: #d3e4f5; --h2: #b3d0ec; --h3: #8db8e0; --h4: #659dd1; --h5: #4081bd;
  --h6: #2566a1; --h7: #144b80; --h8: #0a3058;
  --c0: #0b62a4; --c1: #c4450c; --c2: #1a7f37; --c3: #8250df; --c4: #9a6700; --c5: #a40e57; --c6: #1b7c83;
  --c7: #57606a; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0d1117; --text: #e6edf3; --soft: #9aa4af; --line: #30363d; --panel: #161b22;
  --accent: #58a6ff; --good: #56d364; --bad: #ff8577; --warn: #e3b341;
  --good-back: #12321c; --bad-back: #44150f; --warn-back: #3a2d08;
  --h0: #101d2c; --h1: #12304d; --h2: #15446f; --h3: #1b5a91; --h4: #2a74b2; --h5: #4490cd;
  --h6: #6bade0; --h7: #9bcaef; --h8: #d3e9fb;
  --c0: #58a6ff; --c1: #ff9b5e; --c2: #56d364; --c3: #c297ff; --c4: #e3b341; --c5: #ff7eb6; --c6: #5bd1d7;
  --c7: #b1bac4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 21px; margin: 44px 0 10px; padding-top: 12px; border-top: 1px solid var(--line); }
h3 { font-size: 16px; margin: 24px 0 6px; }
p { margin: 6px 0 10px; }
.soft, .command { color: var(--soft); }
.command { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; margin: 2px 0 14px; }
.command::before { content: "$ "; }
code { font: 0.88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 14px 0 20px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 10px; margin: 18px 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.card b { display: block; font-size: 19px; line-height: 1.3; overflow-wrap: anywhere; }
.card span { color: var(--soft); font-size: 13px; }
.answer { border-left: 4px solid var(--accent); background: var(--panel); padding: 10px 14px; margin: 10px 0;
  border-radius: 0 8px 8px 0; }
.answer.bad { border-color: var(--bad); } .answer.good { border-color: var(--good); }
.answer.warn { border-color: var(--warn); }
.answer p:last-child { margin-bottom: 0; }
.scroll { overflow-x: auto; margin: 8px 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; color: var(--soft); font-weight: 600; white-space: nowrap; }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.number + td:not(.number), th.number + th:not(.number) { padding-left: 16px; }
sup { font-size: 0.75em; line-height: 0; }
td ul { margin: 0; padding-left: 16px; }
.badge { display: inline-block; padding: 0 8px; border-radius: 10px; font-size: 12.5px; white-space: nowrap;
  background: var(--panel); border: 1px solid var(--line); }
.badge.good { color: var(--good); background: var(--good-back); border-color: transparent; }
.badge.bad { color: var(--bad); background: var(--bad-back); border-color: transparent; }
.badge.warn { color: var(--warn); background: var(--warn-back); border-color: transparent; }
svg { display: block; width: 100%; height: auto; margin: 8px 0; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg text.strong { font-weight: 600; fill: var(--text); }
svg .bar, svg .plain { fill: var(--accent); } svg .good { fill: var(--good); } svg .bad { fill: var(--bad); }
svg .warn { fill: var(--warn); }
svg .axis { stroke: var(--soft); } svg .grid { stroke: var(--line); }
svg .limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .dash { stroke-width: 1.4; stroke-dasharray: 5 4; fill: none; }
svg .none { fill: var(--panel); }
svg .h0 { fill: var(--h0); } svg .h1 { fill: var(--h1); } svg .h2 { fill: var(--h2); }
svg .h3 { fill: var(--h3); } svg .h4 { fill: var(--h4); } svg .h5 { fill: var(--h5); }
svg .h6 { fill: var(--h6); } svg .h7 { fill: var(--h7); } svg .h8 { fill: var(--h8); }
svg .d0 { fill: var(--c0); } svg .d1 { fill: var(--c1); } svg .d2 { fill: var(--c2); } svg .d3 { fill: var(--c3); }
svg .d4 { fill: var(--c4); } svg .d5 { fill: var(--c5); } svg .d6 { fill: var(--c6); } svg .d7 { fill: var(--c7); }
svg .s0 { stroke: var(--c0); } svg .s1 { stroke: var(--c1); } svg .s2 { stroke: var(--c2); }
svg .s3 { stroke: var(--c3); } svg .s4 { stroke: var(--c4); } svg .s5 { stroke: var(--c5); }
svg .s6 { stroke: var(--c6); } svg .s7 { stroke: var(--c7); }
svg.spark { width: 120px; height: 20px; margin: 0; }
img.plot { width: 100%; max-width: 960px; display: block; }
details > summary { cursor: pointer; color: var(--accent); margin: 8px 0; }
footer { margin-top: 48px; padding-top: 12px; border-top: 1px solid var(--line); color: var(--soft); font-size: 13px; }
@page { margin: 14mm; }
@media print { :root { color-scheme: light;
  --page: #ffffff; --text: #000000; --soft: #444444; --line: #cccccc; --panel: #f5f5f5;
  --accent: #0b62a4; --good: #14632b; --bad: #a01c12; --warn: #7a5200;
  --good-back: #eefbf1; --bad-back: #fff0ee; --warn-back: #fff8e0;
  --h0: #eef4fb; --h1: #d3e4f5; --h2: #b3d0ec; --h3: #8db8e0; --h4: #659dd1; --h5: #4081bd;
  --h6: #2566a1; --h7: #144b80; --h8: #0a3058;
  --c0: #0b62a4; --c1: #c4450c; --c2: #1a7f37; --c3: #8250df; --c4: #9a6700; --c5: #a40e57; --c6: #1b7c83;
  --c7: #57606a; }
  body { font-size: 10.5pt; } main { padding: 0; max-width: none; } nav { display: none; }
  .scroll { overflow: visible; } table { font-size: 8.5pt; }
  h2, h3, .command { break-after: avoid; } tr, svg, .card, .answer { break-inside: avoid; }
  svg, .badge, .card, .answer { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  details > summary { list-style: none; color: var(--soft); } }
)css";

}  // namespace fp4moe::report
