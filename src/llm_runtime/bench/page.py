"""A page as data, and its two forms: HTML and Markdown, each one file that needs no other."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """png: the file's bytes. caption: also what is read where pictures aren't shown."""

    png: bytes
    caption: str

    @property
    def data_url(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


Part = Heading | Paragraph | Table | Picture

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ccc; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
figure { margin: 1rem 0; }
figcaption { color: #555; }
"""


def as_html(title: str, parts: Iterable[Part]) -> str:
    body = "\n".join(_html(part) for part in parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{html.escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def as_markdown(title: str, parts: Iterable[Part]) -> str:
    return "\n\n".join([f"# {title}", *(_markdown(part) for part in parts)]) + "\n"


def _html(part: Part) -> str:
    match part:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Table(header, rows):
            lines = [_html_row("th", header), *(_html_row("td", row) for row in rows)]
            return "<table>\n" + "\n".join(lines) + "\n</table>"
        case Picture():
            caption = html.escape(part.caption)
            image = f'<img src="{part.data_url}" alt="{caption}">'
            return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _markdown(part: Part) -> str:
    match part:
        case Heading(text, level):
            return f"{'#' * level} {_escaped(text)}"
        case Paragraph(text):
            return _escaped(text)
        case Table(header, rows):
            rule = ["---", *["---:"] * (len(header) - 1)]
            return "\n".join(_markdown_row(cells) for cells in (header, rule, *rows))
        case Picture():
            return f"![{_escaped(part.caption)}]({part.data_url})"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    for character in "\\|<[*_`":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")
