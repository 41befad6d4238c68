"""Sequences as HTML: every token a span, shaded by its weight, so that all scripts show as the browser knows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from mapsto.tasks.pictures.example import Example
from mapsto.tasks.pictures.sheet import top_weight
from mapsto.tasks.pictures.text import escape
from mapsto.tasks.pictures.view import TokensView

__all__ = ["rows"]

TOKENS = 600
"""The most tokens of one row on the page."""


def rows(shown: Sequence[Example], *, weights: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The sequences of some examples, with what is true and what was said; empty if there are none.

    Args:
        shown: the examples.
        weights: as in :func:`mapsto.tasks.pictures.sheet.sheet`.
    """
    top = 3.0 if weights is None else top_weight(weights)
    found = []
    for i, example in enumerate(shown):
        texts = [
            (name, view, None if weights is None else weights[i][name])
            for name, view in example.views.items()
            if isinstance(view, TokensView)
        ]
        if texts or example.lines:
            many = len(example.views) > 1 or bool(example.lines)
            lines = "".join(_line(name if many else "", view, w, top, example.wrong) for name, view, w in texts)
            lines += "".join(_line(line.name, line.view, None, top, line.wrong) for line in example.lines)
            found.append(f'<div class="row">{_heading(example)}{lines}</div>')
    if found and weights is not None:
        found.insert(0, f'<p class="note">Shade: weight from 0 to {top:.1f} times the even share.</p>')
    return "".join(found)


def _heading(example: Example) -> str:
    wrong = ' class="wrong"' if example.right is False else ""
    said = f" <span{wrong}>said: {escape(example.said)}</span>" if example.said else ""
    truth = f"true: {escape(example.truth)}" if example.said else escape(example.truth)
    known = f"<b>{truth}</b>{said} " if truth else ""
    return f'<p class="head">{known}<span class="where">{escape(example.where)}</span></p>'


def _line(name: str, view: TokensView, weights: Any, top: float, wrong: Any) -> str:
    spans = []
    for i, token in enumerate(view.tokens[:TOKENS]):
        text = "?" if view.unknown[i] else escape(token)
        names = ["unknown"] * bool(view.unknown[i]) + ["missed"] * (wrong is not None and bool(wrong[i]))
        kind = f' class="{" ".join(names)}"' if names else ""
        if weights is None:
            spans.append(f"<span{kind}>{text}</span>")
        else:
            alpha = min(1.0, max(0.0, float(weights[i]) / top))
            spans.append(f'<span{kind} style="--w:{alpha:.2f}" title="{float(weights[i]):.2f}">{text}</span>')
    more = f' <i class="where">… {view.items - TOKENS} more</i>' if view.items > TOKENS else ""
    title = f'<span class="where">{escape(name)}: </span>' if name else ""
    kind = "tokens weighed" if weights is not None else "tokens cut"
    return f'<p class="{kind}" dir="auto">{title}{"".join(spans)}{more}</p>'
