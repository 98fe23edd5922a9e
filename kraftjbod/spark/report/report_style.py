"""WIRE. The CSS of a report: one column, two colour schemes, paper.

The colours of plots are those of ``plot_style``, as variables of the same names.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.spark.style.plot_style import PALETTE

_LIGHT: Final = "".join(f"--{colour.name}:{colour.light};" for colour in PALETTE) + (
    "--page:#f4f6f8;--good:#1a7f5a;--warn:#8f5f00;--bad:#b13600;--soft:#eef1f5;--fill:#b9d9ee;"
    "--fill-warn:#f5d58a;--fill-bad:#f3b393;"
)
_DARK: Final = "".join(f"--{colour.name}:{colour.dark};" for colour in PALETTE) + (
    "--page:#0f1317;--good:#4fc79a;--warn:#f0b840;--bad:#ff8a55;--soft:#222932;--fill:#24506d;"
    "--fill-warn:#6d5115;--fill-bad:#7a3818;"
)
_RULES: Final = """
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0;background:var(--page);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
header,main{max-width:1160px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
h1{font-size:26px;line-height:1.2;margin:0}
header p{color:var(--quiet);margin:4px 0 18px}
h2{font-size:19px;line-height:1.3;margin:0}
.lead{margin:2px 0 14px;color:var(--quiet)}
.lead:last-child{margin-bottom:0}
.time{white-space:nowrap;font-variant-numeric:tabular-nums}
nav{display:flex;flex-wrap:wrap;gap:6px;margin:18px 0}
nav a{padding:3px 11px;border:1px solid var(--grid);border-radius:99px;background:var(--surface);
 color:var(--ink);text-decoration:none;font-size:13px}
nav a:hover,nav a:focus-visible{border-color:var(--after)}
nav a.missing{color:var(--quiet);border-style:dashed;background:none}
section{background:var(--surface);border:1px solid var(--grid);border-radius:10px;
 padding:18px 20px 20px;margin:0 0 18px;scroll-margin-top:12px}
section.missing{background:none;border-style:dashed}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:10px}
.tile{background:var(--surface);border:1px solid var(--grid);border-radius:10px;padding:10px 12px;
 border-left:4px solid var(--grid)}
.tile b{display:block;font-size:19px;line-height:1.3;white-space:nowrap;
 font-variant-numeric:tabular-nums}
.tile span{overflow-wrap:anywhere;color:var(--quiet);font-size:13px}
.tile.good{border-left-color:var(--good)}.tile.good b{color:var(--good)}
.tile.warn{border-left-color:var(--saturated)}.tile.warn b{color:var(--warn)}
.tile.bad{border-left-color:var(--bad)}.tile.bad b{color:var(--bad)}
figure{margin:0 0 6px}
figure+figure,.table+figure,.note+figure,figure+.table,.table+.table,.note+.table,.command+.table{margin-top:20px}
figure svg{display:block;width:100%;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}
figcaption,.note{color:var(--quiet);font-size:13px;margin:6px 0 0}
.table{overflow:auto;max-height:440px}
.table thead th{position:sticky;top:0;background:var(--surface)}
table{border-collapse:collapse;width:100%;font-size:14px}
caption{text-align:left;font-weight:600;padding-bottom:4px}
th,td{text-align:left;padding:5px 10px;border-bottom:1px solid var(--grid);vertical-align:top}
th{color:var(--quiet);font-weight:600;font-size:12.5px;white-space:nowrap}
td{overflow-wrap:anywhere}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tbody tr:hover{background:var(--soft)}
.state{display:inline-block;white-space:nowrap}
.state::before{content:"";display:inline-block;width:10px;height:10px;border-radius:3px;
 margin-right:6px;background:var(--quiet)}
.state.online::before{background:var(--online)}
.state.saturated::before{background:var(--saturated)}
.state.stalled::before{background:var(--stalled)}
.state.offline::before{background:var(--offline)}
.state.cordoned::before{background:var(--cordoned)}
.meter{position:relative;display:inline-block;width:112px;border-radius:4px;overflow:hidden;
 background:var(--soft);text-align:right}
.meter i{position:absolute;inset:0 auto 0 0;background:var(--fill)}
.meter.warn i{background:var(--fill-warn)}
.meter.bad i{background:var(--fill-bad)}
.meter span{position:relative;padding:0 7px;font-size:13px}
.command{background:var(--soft);border-radius:6px;padding:9px 12px;margin:0;overflow-x:auto;
 font:13px/1.5 ui-monospace,"DejaVu Sans Mono",monospace}
@media print{
 body{background:#fff;font-size:11px}
 header,main{max-width:none;padding:0}
 nav{display:none}
 section{border:0;padding:0;break-inside:auto}
 figure,tr,.tiles,h2,.lead{break-inside:avoid}
 h2,.lead{break-after:avoid}
 section.missing{display:none}
 .table{max-height:none;overflow:visible}
}
"""
#: Everything between ``<style>`` and ``</style>``.
STYLE: Final = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}{_RULES}"
)
