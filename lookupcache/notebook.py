"""Objects as HTML tables, as notebooks show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

_CELL = 'style="text-align: left; padding: 2px 8px"'


def as_html(title: str, parts: Mapping[str, Iterable[tuple[str, str]]]) -> str:
    """Return a table of names and texts, in parts with a heading each; an empty part is left out.

    A text without a name fills the row.

    >>> print(as_html("A join", {"Lookup": [("field key", "id < 3")], "Calls": []}))
    <table><caption>A join</caption>
    <tr><th colspan="2" style="text-align: left; padding: 2px 8px">Lookup</th></tr>
    <tr><td style="text-align: left; padding: 2px 8px"><code>field key</code></td>\
<td style="text-align: left; padding: 2px 8px">id &lt; 3</td></tr>
    </table>
    >>> "<code>" in as_html("A plan", {"": [("", "a text alone")]})
    False
    """
    lines = [f"<table><caption>{escape(title)}</caption>"]
    for heading, rows in parts.items():
        cells = [
            f"<tr><td {_CELL}><code>{escape(name)}</code></td><td {_CELL}>{escape(text)}</td></tr>"
            if name
            else f'<tr><td colspan="2" {_CELL}>{escape(text)}</td></tr>'
            for name, text in rows
        ]
        if heading and cells:
            lines.append(f'<tr><th colspan="2" {_CELL}>{escape(heading)}</th></tr>')
        lines += cells
    return "\n".join([*lines, "</table>"])
