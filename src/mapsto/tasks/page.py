"""The frame of the report: one HTML page without scripts that may load nothing from anywhere."""

from collections.abc import Sequence

from mapsto.tasks.pictures.text import escape

__all__ = ["page", "section", "table"]

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

STYLE = """
:root { --paper: #ffffff; --ink: #1f2328; --soft: #667079; --line: #d8dee4; --box: #f4f6f8; --cut: #dfe5ea;
  --link: #0072b2; --wrong: #b34700; --shade: 213, 94, 0; --warn: #fff1e5; --fine: #e8f4ee; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181c; --ink: #e3e7eb; --soft: #98a2ab; --line: #333b43; --box: #1d2329; --cut: #2d363e;
    --link: #6cb8e6; --wrong: #ff9d57; --shade: 224, 112, 32; --warn: #3a2613; --fine: #16301f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.45rem; line-height: 1.25; margin: .6rem 0 1rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
table.numbers td, table.numbers th { white-space: nowrap; overflow-wrap: normal; }
table.numbers tr:first-child td { font-weight: 600; }
table.columns tr:first-child td { font-weight: inherit; }
table.columns td:nth-child(2) { font-weight: 600; }
table.facts td:first-child { color: var(--soft); white-space: nowrap; overflow-wrap: normal; }
p.warning, p.fine { padding: .6rem .8rem; border-radius: .4rem; background: var(--fine); }
p.warning { background: var(--warn); font-weight: 600; }
figure { margin: 1.4rem 0 2rem; }
img { display: block; width: 100%; max-width: 100%; height: auto; background: #ffffff; border-radius: .4rem;
  border: 1px solid var(--line); }
figcaption, .note, .where { color: var(--soft); font-size: .88rem; }
figcaption { margin-top: .5rem; }
.row { margin: .9rem 0; }
.row p { margin: .15rem 0; }
.head { font-size: .92rem; }
.wrong { color: var(--wrong); }
.tokens { font: 15px/1.9 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre-wrap; }
.tokens span { padding: .12em .1em; border-radius: .15em; }
.tokens.cut span:not(.where) { background: var(--box); border-right: 2px solid var(--paper); }
.tokens.cut span:not(.where):nth-child(even) { background: var(--cut); }
.tokens.weighed span[style] { background: rgba(var(--shade), var(--w)); }
.tokens span.missed { text-decoration: underline 2px var(--wrong); }
.tokens span.unknown { color: var(--wrong); font-weight: 700; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1.4rem; }
.tokens.close { font-size: 13.5px; line-height: 1.55; overflow-x: auto; }
.tokens.close span { padding: .1em 0; border-radius: 0; }
details { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .8rem; }
summary { cursor: pointer; }
pre { overflow-x: auto; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; }
footer { margin: 3rem 0 1rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 40rem) { body { padding: .7rem; font-size: 15px; } h1 { font-size: 1.2rem; } }
@media print { details > * { display: block; } }
"""


def page(title: str, sections: Sequence[str]) -> str:
    """The whole page.

    Args:
        title: plain text.
        sections: HTML that is safe already.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(sections)
        + "\n<footer>Written by mapsto. This page holds everything it shows and loads nothing.</footer>\n"
        "</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """A heading and what is under it (HTML that is safe already)."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def table(head: Sequence[str], body: Sequence[Sequence[str]], *, kind: str = "numbers") -> str:
    """A table of plain text, which scrolls by itself where it is wider than the page.

    Args:
        head: titles of the columns, or none.
        body: rows of cells.
        kind: its class: ``numbers`` (the first row stands out), ``numbers columns`` (the first column of numbers does) or
            ``facts``.
    """
    top = f"<thead><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr></thead>" if head else ""
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{lines}</tbody></table></div>'
