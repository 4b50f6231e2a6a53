"""How databases with typed columns spell names, texts and the null-safe comparison.

Written out, as a worker that imported a library for SQL texts would take twice as long to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """The spelling of one database.

    - ``mark``: the character around a quoted name.
    - ``null_safe_equal``: the operator that holds two nulls equal.
    - ``escapes``: the escape sequence of each character that a text cannot have as it is, besides the apostrophe.
    """

    mark: str = '"'
    null_safe_equal: str = "IS NOT DISTINCT FROM"
    escapes: Mapping[str, str] = field(default_factory=dict)

    def quote(self, name: str) -> str:
        """Return an identifier as SQL.

        >>> Dialect().quote('odd"name')
        '"odd""name"'
        """
        return self.mark + name.replace(self.mark, 2 * self.mark) + self.mark

    def text(self, value: str) -> str:
        r"""Return a string as SQL.

        >>> print(Dialect().text("it's"), MYSQL_SQL.text("a\\b"))
        'it''s' 'a\\b'
        """
        return "".join({"'": "''", **self.escapes}.get(letter, letter) for letter in value).join("''")


STANDARD_SQL = Dialect()
MYSQL_SQL = Dialect("`", "<=>", {"\\": r"\\", "\0": r"\0", "\n": r"\n", "\r": r"\r", "\x1a": r"\Z"})
