"""Text from data that would be more than text: where it is shown, nothing of it acts."""

import json
import random
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from attacks import Base, put, seal

TEXTS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></pre><script>",
    "javascript:alert(1)",
    "[a](javascript:alert(1))",
    "![a](https://example.com/a.png)",
    "<https://example.com>",
    "`x` **b** _i_ # h",
    "``` \n# head",
    "a\n\n# head\n\n- list",
    "a|b|c",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]8;;http://example.com\x1b\\",
    "\r\x08\x08\x7f\x9b31m",
    "\u202egnp.exe\u2066\u200e\u2028\u2029",
    "[bold red]markup[/]",
    "$(id) `id` ; id",
    "$x_1$ \\input{/etc/passwd}",
    "&lt;script&gt; &amp; &#60;",
    "{{7*7}} %s {0} ${x}",
]
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    ),
    *(
        "section",
        "div",
        "span",
        "details",
        "summary",
        "pre",
        "figure",
        "figcaption",
        "img",
        "ul",
        "li",
        "footer",
        "b",
        "br",
    ),
}
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "style", "alt", "src", "title"}


class Page(HTMLParser):
    """What is in a page that a report has no use for."""

    def __init__(self) -> None:
        super().__init__()
        self.odd: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Tags and attributes."""
        if tag not in TAGS:
            self.odd.append(f"<{tag}>")
        for name, value in attrs:
            if name not in ATTRIBUTES or (name == "src" and not (value or "").startswith("data:image/png;base64,")):
                self.odd.append(f"{tag} {name}={value!r:.40}")

    handle_startendtag = handle_starttag


def acts_on_terminal(text: str) -> str:
    """The first character that is no text, or nothing."""
    for c in text:
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\u200c\u200d":
            return repr(c)
    return ""


def acts_in_page(text: str) -> str:
    """What is wrong about an HTML page, or nothing."""
    page = Page()
    page.feed(text)
    page.close()
    return ", ".join(page.odd[:3]) or acts_on_terminal(text)


def acts_in_card(text: str, known: str) -> str:
    """What is wrong about a card in Markdown: other headings, code, links or HTML than ``known`` has, or nothing."""
    if wrong := acts_on_terminal(text):
        return wrong
    if len(found := outline(text)) != len(outline(known)):
        return f"{len(found)} lines of structure, expected {len(outline(known))}: {found}"
    plain = re.sub(r"\\.", "", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    allowed = re.sub(r"\\.", "", re.sub(r"^```.*?^```$", "", known, flags=re.DOTALL | re.MULTILINE))
    for mark in "<>[]`*_":
        if plain.count(mark) != allowed.count(mark):
            return f"{mark} stands open: {plain.count(mark)} times, expected {allowed.count(mark)}"
    return ""


def outline(text: str) -> list[str]:
    """The lines that begin something in Markdown."""
    return [line for line in text.split("\n") if re.match(r"(#+ |```|- |\|)", line)]


def texts(content: Any) -> Iterator[str]:
    """Names that come from data: of fields, columns, targets and classes."""
    for field in [*content["schema"]["inputs"], content["schema"]["output"]]:
        yield field["name"]
        for column, _ in field["columns"]:
            yield column
    for part in [*content["inputs"], content["output"]]:
        for holder in [part, *part.get("columns", []), *part.get("targets", {}).values(), part.get("target", {})]:
            yield from holder.get("classes", [])


def renamed(content: Any, names: dict[str, str]) -> Any:
    """The same with some texts for others, as values and as keys of targets."""
    if isinstance(content, dict):
        return {names.get(k, k) if isinstance(v, dict) else k: renamed(v, names) for k, v in content.items()}
    if isinstance(content, list):
        return [renamed(v, names) for v in content]
    return names.get(content, content) if isinstance(content, str) else content


def markup(folder: Path, base: Base, source: random.Random) -> str:
    """Names of columns and classes that are markup, escapes and marks of direction."""
    path = folder / "model" / "config.json"
    content = json.loads(path.read_text())
    known = sorted(set(texts(content)) - {"label", "number", "series", "items", "targets"})
    chosen = source.sample(known, min(len(known), source.choice([1, 2, 9])))
    names = {name: f"{source.choice(TEXTS)} {name}" for name in chosen}
    for part in ("schema", "inputs", "output"):
        content[part] = renamed(content[part], names)
    put(path, json.dumps(content).encode())
    seal(path.parent)
    return ", ".join(repr(v)[:30] for v in names.values())
