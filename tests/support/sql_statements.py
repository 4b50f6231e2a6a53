"""Draws statements with lookups: names that several sides have, shadowing aliases, nested scopes, comments anywhere.

``NOW`` stands for the period of a lookup, which Spark's own statement leaves out.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from session_settings import DRAWN, NOT_OF_STATEMENTS, OF_STATEMENTS, in_parts

from lookupcache.planner.clauses import tokens

NOW = "lookup_now"
ARGUMENT = "lookup_arg"
"""Stands for a parameter, named or a question mark."""
VARIABLES = ("var_n", "VAR_N", "session.var_n", "system.session.k")
"""Session variables; one without a schema is no column of any relation."""
PERIODS = ("FOR SYSTEM_TIME AS OF PROCTIME()", "FOR SYSTEM_TIME AS OF CURRENT_TIMESTAMP")
RELATIONS = {
    "o": {"id": "INT", "k": "BIGINT", "name": "STRING", "s": "STRUCT<id: INT, name: STRING>", "v": "STRING"},
    "t": {"id": "INT", "k": "BIGINT", "name": "STRING", "c": "STRING"},
}
TABLES = {
    "cust": {"id": "BIGINT", "k": "INT", "name": "STRING", "c": "STRING", "label": "STRING"},
    "many": {"id": "BIGINT", "k": "INT", "name": "STRING", "s": "STRUCT<id: INT, name: STRING>"},
}
RECURSIVE = {"id": "INT", "k": "BIGINT", "name": "STRING"}
"""The columns of a recursive common table expression."""
SCANNED = tuple(f"{name}_all" for name in TABLES)
TABLES |= {f"{name}_all": columns for name, columns in TABLES.items()}
"""Of these the full tables are read where a lookup is not possible."""
VIEWS = {"cust_v": {"k": "INT", "id": "BIGINT", "name": "STRING", "label": "STRING"}}
"""Views of one lookup table."""
VIEW_OF = {"cust_v": "SELECT k, id, lower(c) AS name, label FROM cust WHERE k IS NOT NULL OR c = 'a'"}
ALIASES = ("c", "d", "x", "s", "name", "k", "o", "t", "v", "Id2")
LITERALS = ("'a'", "'b'", "'-- a'", "'/* b'", "'a'' AND ''b'", "'SELECT * FROM cust'", "'{x}'", "'it\\'s'", "r'\\d'",
            "'a\\n'")  # fmt: skip
GAPS = (" ", "\n", "\r\n", "\t", " /* c */ ", "/* a /* AND x = y */ b */", " -- AND 1 = 0 '\n", "--;\r", " /**/ ")
WRAPPED = (
    "FROM ({}) AS q SELECT *", "WITH w AS ({}) TABLE w", "FROM ({}) AS q |> WHERE TRUE",
    "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3), w AS ({}) SELECT * FROM w JOIN r",
    "SELECT * FROM (SELECT count(*) AS n, 'a' AS z FROM ({})) PIVOT (max(n) FOR z IN ('a', 'b'))", "({}) LIMIT 1000",
    "SELECT z.zid, (SELECT count(*) FROM ({}) AS q) AS n FROM (SELECT 1 AS zid) AS z",
    "SELECT z.zid, q.* FROM (SELECT 1 AS zid) AS z LEFT JOIN LATERAL ({}) AS q",
)  # fmt: skip
"""Statements around a query."""
SPELLING = ("spark.sql.caseSensitive", "spark.sql.ansi.enabled", "spark.sql.ansi.doubleQuotedIdentifiers")
"""Settings that say how a statement may be written."""
_OTHERS = {
    name: value for name, value in (DRAWN | OF_STATEMENTS).items() if name not in (*SPELLING, *NOT_OF_STATEMENTS)
}
SETTINGS = (*SPELLING, *_OTHERS)
_PARTS = [(), *in_parts(_OTHERS, 7)]
"""One for each combination of the three, since statements of the same settings are run together."""
_OWN = 2
"""Spark's own combination: only the second of the three is set."""
_BLOCK = 250
"""For so many statements on end a combination has the same part; for the first ones, Spark's own has none."""


@dataclass
class Statement:
    """A drawn statement: the text for a session with lookups, Spark's own, and the settings for both."""

    lookup: str
    plain: str
    settings: dict[str, str]
    ordered_by: str | None = None
    """The column by which the result is ordered."""
    args: dict[str, int] | list[int] | None = None


@dataclass
class Relations:
    """The relations of a FROM that may be named, by alias, with their columns."""

    columns: dict[str, dict[str, str]] = field(default_factory=dict)

    def columns_of_type(self, *kinds: str) -> list[tuple[str, str]]:
        """Return alias and name of the columns of these types."""
        return [(a, n) for a, columns in self.columns.items() for n, kind in columns.items() if kind in kinds]

    def is_unique(self, name: str) -> bool:
        """Return whether a name without qualifier means one column."""
        return sum(name.lower() in map(str.lower, columns) for columns in self.columns.values()) == 1


class Scope:
    """A scope of common table expressions: those of it are forgotten behind it."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing, self.before = drawing, dict(drawing.plain)

    def __enter__(self) -> None:
        """Keep what is known."""

    def __exit__(self, *_: object) -> None:
        self.drawing.plain = self.before


class Drawing:
    """Draws one statement from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.plain = dict(RELATIONS)
        """Spark's relations by name; in WITH also those that have the name of a lookup table."""
        self.ordered_by: str | None = None
        self.settings = {
            SPELLING[0]: self.draw.choice(["false", "false", "true"]),
            SPELLING[1]: self.draw.choice(["true", "true", "false"]),
            SPELLING[2]: self.draw.choice(["false", "false", "true"]),
        }
        combination = sum(2**n for n, name in enumerate(SPELLING) if self.settings[name] == "true")
        self.settings |= dict(_PARTS[(combination - _OWN + seed // _BLOCK) % len(_PARTS)])

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def statement(self) -> Statement:
        """Return a statement."""
        text = self.query()
        shape, order = self.draw.random(), None
        if shape < 0.12:
            text = self.draw.choice(WRAPPED).replace("{}", text)
        elif shape < 0.2:
            text = f"WITH w AS ({text}), z (id) AS (SELECT 1) SELECT w.*, z.id AS zid FROM w JOIN z ON TRUE"
        elif shape < 0.26:
            text = f"SELECT * FROM ({text}) AS o"
        elif shape < 0.3:
            text = f"SELECT count(*) AS n FROM ({text}) UNION ALL SELECT count(*) FROM cust AS c WHERE c.id > 1"
        else:
            order = self.ordered_by
        noisy, args = self.with_arguments(self.noise(text))
        periods = iter(self.draw.choice(PERIODS) for _ in range(noisy.count(NOW)))
        lookup, plain = re.sub(NOW, lambda _: next(periods), noisy), noisy.replace(NOW, "")
        return Statement(lookup, plain, self.settings, order, args)

    def with_arguments(self, text: str) -> tuple[str, dict[str, int] | list[int] | None]:
        """Return a text with parameters, and the values of them."""
        count = text.count(ARGUMENT)
        if not count:
            return text, None
        if self.chance(0.5):
            return text.replace(ARGUMENT, ":p"), {"p": 2}
        return text.replace(ARGUMENT, "?"), [self.draw.randint(0, 3) for _ in range(count)]

    def noise(self, text: str) -> str:
        """Put blanks, comments and line ends between tokens, and change the case of words."""
        pieces, done = [], 0
        for token in tokens(text):
            gap = text[done : token.start]
            if gap or self.chance(0.02):
                gap = f" {self.draw.choice(GAPS)}" if self.chance(0.15) else gap
            word = text[token.start : token.end]
            if token.kind == "word" and word.isupper() and self.chance(0.1):
                word = word.lower()
            elif token.kind in ("word", "quoted") and word.isalpha() and word != NOW:
                word = self.respell(word)
            pieces += [gap, word]
            done = token.end
        return "".join(pieces)

    def respell(self, name: str) -> str:
        """Return a name in another spelling that Spark takes for the same."""
        if not name.islower():
            return name
        if self.settings[SPELLING[0]] == "false" and self.chance(0.05):
            name = name.upper() if name in ("id", "k", "name", "c", "s", "v") else name
        if name.lower() in ("id", "k", "name") and self.chance(0.1):
            quoted = self.settings[SPELLING[1]] == self.settings[SPELLING[2]] == "true"
            return f'"{name}"' if quoted and self.chance(0.5) else f"`{name}`"
        return name

    # ── WITH ─────────────────────────────────────────────────────────────────────────────────────────────

    def query(self) -> str:
        """Return a SELECT, or one with a WITH whose names hide relations, lookup tables, and each other."""
        if not self.chance(0.15):
            return self.select()
        with Scope(self):
            return f"{self.with_clause()} {self.select()}"

    def with_clause(self) -> str:
        """Return a WITH, whose names are known from now on."""
        names, recursive = [*RELATIONS, *("cust", "many", "w")], self.chance(0.15)
        chosen = self.draw.sample(names, self.draw.choice([1, 1, 2, 3]))
        texts = [self.common_table(name, recursive) for name in chosen]
        if recursive:
            step = self.draw.choice(["id + 1, k, name FROM r", "r.id + 1, t.k, r.name FROM r JOIN t ON t.id = r.id"])
            texts.append(f"r (id, k, name) AS (SELECT 1, 2L, 'a' UNION ALL SELECT {step} WHERE r.id < 3)")
            self.plain["r"] = RECURSIVE
        return f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(texts)}"

    def common_table(self, name: str, recursive: bool) -> str:
        """Return a common table expression with the columns of the relation that it hides."""
        columns = {**RELATIONS, **TABLES}.get(name, RECURSIVE)
        with Scope(self):
            inner = f"{self.with_clause()} " if self.chance(0.2) and not recursive else ""
            # A recursive one must not read itself.
            known = {**self.plain, **{one: TABLES[one] for one in self.lookup_tables()}}
            source = self.draw.choice([one for one in known if not (recursive and one == name)])
            alias = self.draw.choice([source, "x", name])
            tables = [one for one in self.lookup_tables() if not (recursive and one == name)]
            join = ""
            if tables and alias != "d" and self.chance(0.4):
                kind = self.draw.choice(["JOIN", "LEFT JOIN", "LEFT SEMI JOIN"])
                join = f" {kind} {self.draw.choice(tables)} {NOW} AS d ON {alias}.k = d.id"
            items = [
                (f"{alias}.{one}" if known[source].get(one) == kind else f"CAST({alias}.id AS {kind})")
                if kind in ("INT", "BIGINT") else f"{alias}.{one}" if one in known[source]
                else f"{alias}.name" if kind == "STRING" else f"named_struct('id', 1, 'name', {alias}.name)"
                for one, kind in columns.items()
            ]  # fmt: skip
            listed = self.chance(0.3)
            named = items if listed else [f"{item} AS {one}" for item, one in zip(items, columns, strict=True)]
            written = source if alias == source else f"{source} AS {alias}"
            body = f"{inner}SELECT {', '.join(named)} FROM {written}{join} WHERE {alias}.id < 9"
        self.plain[name] = columns
        return f"{name}{' (' + ', '.join(columns) + ')' if listed else ''} AS ({body})"

    def lookup_tables(self) -> list[str]:
        """Return the lookup tables of which no common table expression has the name."""
        return [name for name in TABLES if name not in self.plain and not name.endswith("_all")]

    # ── FROM ─────────────────────────────────────────────────────────────────────────────────────────────

    def select(self) -> str:
        relations = Relations()
        first = self.first(relations)
        joins, lookups = [], 0
        for _ in range(self.draw.choice([1, 1, 2, 2, 3])):
            lookup = lookups == 0 or self.chance(0.6)
            lookups += lookup
            joins.append(self.lateral(relations) if self.chance(0.04) else self.join(relations, lookup))
        if self.chance(0.06):
            joins.append(" CROSS JOIN (SELECT 1 AS one)")
        if self.chance(0.08):
            return self.piped(relations, first, joins)
        return self.finish(relations, f"FROM {first}{''.join(joins)}", self.where(relations))

    def piped(self, relations: Relations, first: str, joins: list[str]) -> str:
        """Return the query with pipes behind its joins."""
        pieces = [f"FROM {first}{''.join(joins)}"]
        pieces += [f"WHERE {self.condition(relations, queries=False)}" for _ in range(self.draw.choice([0, 1, 1]))]
        key, measure = self.text(relations), self.number(relations)
        ends = (
            f"SELECT {', '.join(self.items(relations, scalars=False))}",
            f"AGGREGATE count(*) AS n, max({measure}) GROUP BY {key}", f"EXTEND {key} AS e |> SELECT e",
            f"SELECT {key} AS a, {measure} AS b |> AS q |> WHERE q.b > 0",
        )  # fmt: skip
        pieces.append(self.draw.choice(ends))
        return " |> ".join(pieces)

    def lateral(self, relations: Relations) -> str:
        """Return a lateral sub-query, which reads what stands before it."""
        column, alias = self.number(relations), self.alias(relations)
        relations.columns[alias] = {"id": "BIGINT", "name": "STRING"}
        return f" CROSS JOIN LATERAL (SELECT bigint({column}) AS id, 'a' AS name) AS {alias}"

    def alias(self, relations: Relations) -> str:
        free = [one for one in ALIASES if one.lower() not in map(str.lower, relations.columns)]
        return self.draw.choice(free)

    def first(self, relations: Relations) -> str:
        name = self.draw.choice(list(self.plain))
        if self.chance(0.3):
            alias = self.alias(relations)
            relations.columns[alias] = dict(RECURSIVE)
            return f"{self.subquery(name)} AS {alias}" if self.chance(0.7) else self.values(relations, alias)
        columns = self.plain[name]
        alias = name if self.chance(0.4) else self.alias(relations)
        relations.columns[alias] = dict(columns)
        if alias != name and self.chance(0.08):
            return self.draw.choice([f"IDENTIFIER('{name}') AS {alias}", f"IDENTIFIER('{name}' || '') AS {alias}"])
        return name if alias == name else f"{name} AS {alias}"

    def subquery(self, name: str) -> str:
        """Return a sub-query with the columns id, k and name."""
        if self.chance(0.2):
            with Scope(self):
                with_clause = self.with_clause()
                return f"({with_clause} SELECT id, k, name FROM {self.draw.choice(list(self.plain))})"
        if self.chance(0.25):
            pivot = self.draw.choice(["PIVOT (max(k) AS m FOR z IN ('a' AS k))", "UNPIVOT (k FOR z IN (k))"])
            items = "id, k, name AS z, name" if pivot.startswith("PIVOT") else "id, k, name"
            return f"(SELECT * FROM (SELECT {items} FROM {name}) {pivot})"
        return f"(SELECT id, k, name FROM {name} WHERE id < 9)"

    def values(self, relations: Relations, alias: str) -> str:
        """Return a relation of values, which has an alias."""
        if self.chance(0.3):
            relations.columns[alias] = {"id": "BIGINT"}
            return f"range(1, 4) AS {alias}"
        rows = "VALUES (1, 2L, 'a'), (2, NULL, 'b'), (4, 1L, NULL)"
        return f"{rows if self.chance(0.5) else f'({rows})'} AS {alias} (id, k, name)"

    def join(self, relations: Relations, lookup: bool) -> str:
        tables = self.lookup_tables()
        scanned = lookup and (self.chance(0.06) or not tables)
        name = self.draw.choice((SCANNED if scanned else tables) if lookup else list(self.plain))
        alias = name if self.chance(0.2) and name not in relations.columns else self.alias(relations)
        columns = TABLES[name] if lookup else self.plain[name]
        if lookup and not scanned and self.chance(0.15):
            name, columns = self.derived(name)
        kinds = ["JOIN", "LEFT JOIN", "INNER JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
        kind = self.draw.choice(kinds if lookup and not scanned else [*kinds, "RIGHT JOIN", "FULL JOIN"])
        left = relations.columns_of_type("INT", "BIGINT")
        both = Relations({**relations.columns, alias: dict(columns)})
        key = f"{self.column(both, *self.draw.choice(left))} = {alias}.{self.draw.choice(['id', 'id', 'k'])}"
        structs = relations.columns_of_type("STRUCT<id: INT, name: STRING>")
        if structs and self.chance(0.15):
            key = f"{'.'.join(self.draw.choice(structs))}.id = {alias}.id"
        key = " = ".join(reversed(key.split(" = "))) if self.chance(0.3) else key
        if self.chance(0.08) and kind in ("JOIN", "LEFT JOIN", "LEFT SEMI JOIN"):
            return self.merging(relations, name, columns, kind, alias, lookup)
        parts = [key, *(self.condition(both, queries=False) for _ in range(self.draw.choice([0, 0, 1, 2])))]
        if self.chance(0.05):
            parts[0] = " OR ".join(f"({key} AND {self.condition(both, queries=False)})" for _ in range(2))
            parts[0] = f"({parts[0]})"
        elif self.chance(0.03):
            parts[0] = self.draw.choice([f"({key} OR NULL)", f"(FALSE OR {key})"])
        if lookup and kind == "JOIN" and self.chance(0.1):
            parts.append(f"{self.column(relations, *self.draw.choice(left))} >= (SELECT min(id) FROM t)")
        self.draw.shuffle(parts)
        if kind not in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
            relations.columns[alias] = dict(columns)
        named = name if alias == name and not lookup else f"{name} {NOW if lookup else ''} AS {alias}"
        return f" {kind} {named} ON {' AND '.join(parts)}"

    def derived(self, name: str) -> tuple[str, dict[str, str]]:
        """Return a query over one lookup table, which filters, computes and renames, with its columns."""
        if self.chance(0.3):
            return self.draw.choice(list(VIEWS.items()))
        columns = TABLES[name]
        own = {one: kind for one, kind in columns.items() if one in ("id", "k") or self.chance(0.7)}
        items = {one: f"z.{one}" for one in own}
        if self.chance(0.4):
            items["id"], items["k"], own["id"], own["k"] = "z.k", "id", columns["k"], columns["id"]
        if "name" in own and self.chance(0.5):
            items["name"] = self.draw.choice(["upper(z.name)", "coalesce(name, 'b')", "concat(z.name, z.k)"])
        listed = ", ".join(f"{item} AS {one}" if item != f"z.{one}" else item for one, item in items.items())
        where = self.condition(Relations({"z": dict(columns)}), queries=False)
        if self.chance(0.3):
            own, listed = dict(columns), "*"
        query = f"SELECT {listed} FROM {name} AS z WHERE {where}"
        around = "{}"
        if self.chance(0.3):
            around = self.draw.choice(["WITH q AS ({}) SELECT * FROM q", "SELECT q.* FROM ({}) AS q WHERE q.id > 0"])
        return f"({around.replace('{}', query)})", own

    def merging(
        self, relations: Relations, name: str, columns: dict[str, str], kind: str, alias: str, lookup: bool
    ) -> str:
        """Return a join with USING or NATURAL, which merges columns."""
        shared = [one for one in ("id", "k", "name") if relations.is_unique(one) and one in columns]
        natural = self.chance(0.4) and not kind.startswith("LEFT SEMI")
        if kind != "LEFT SEMI JOIN":
            relations.columns[alias] = dict(columns)
        table = f"{name} {NOW if lookup else ''} AS {alias}"
        if natural:
            return f" NATURAL {kind} {table}"
        using = ", ".join(self.draw.sample(shared, self.draw.choice([1, 1, 2]) if len(shared) > 1 else len(shared)))
        return f" {kind} {table} USING ({using or 'id'})"

    # ── conditions and items ─────────────────────────────────────────────────────────────────────────────

    def column(self, relations: Relations, alias: str, name: str) -> str:
        return name if relations.is_unique(name) and self.chance(0.3) else f"{alias}.{name}"

    def number(self, relations: Relations, *, computed: bool = True) -> str:
        """Return a number; if ``computed``, its name may be that of IDENTIFIER."""
        alias, name = self.draw.choice(relations.columns_of_type("INT", "BIGINT"))
        column = self.column(relations, alias, name)
        if computed and self.chance(0.04):
            whole = f"{alias}.{name}"
            column = self.draw.choice([f"IDENTIFIER('{whole}')", f"IDENTIFIER('{alias}.' || '{name}')"])
        return self.draw.choice([column, column, f"{column} + 1", f"abs({column})", f"coalesce({column}, 0)"])

    def text(self, relations: Relations) -> str:
        found = relations.columns_of_type("STRING")
        structs = [(a, n) for a, n in relations.columns_of_type("STRUCT<id: INT, name: STRING>")]
        if structs and self.chance(0.15):
            alias, name = self.draw.choice(structs)
            return f"{alias}.{name}.name"
        column = self.column(relations, *self.draw.choice(found)) if found else "'b'"
        return self.draw.choice([column, column, f"upper({column})", f"concat({column}, {self.draw.choice(LITERALS)})"])

    def condition(self, relations: Relations, queries: bool = True) -> str:
        number, text = self.number(relations, computed=queries), self.text(relations)
        kinds = [
            f"{number} > {self.draw.randint(-1, 3)}", f"{number} BETWEEN 0 AND 4", f"{text} IS NOT NULL",
            f"{text} <> {self.draw.choice(LITERALS)}", f"({text} IS NULL OR {number} < 4)", f"NOT {number} = 3",
            f"{text} IN ({', '.join(self.draw.sample(LITERALS, 3))}, {self.text(relations)})", f"{number} <=> {number}",
            f"{number} = {self.number(relations, computed=queries)} IS NOT TRUE", f"{text} LIKE '%a%'",
            f"{text} < {self.text(relations)}",
            f"CASE WHEN {number} > 1 THEN {text} ELSE 'z' END <> 'q'",
            f"exists(array({number}), id -> id > 0 OR {text} IS NULL)",
            f"{number} <> {ARGUMENT}", f"{number} < {self.draw.choice(VARIABLES)} + {ARGUMENT}",
            f"{number} <> {self.draw.choice(VARIABLES)}", f"{number} !> 4", f"array({number}, 2)[0] > 0",
            f"crc32(to_json(struct({number.replace('IDENTIFIER', '1 + IDENTIFIER')}, {text}))) % 2 = 0",
            f"crc32(to_json(({self.draw.choice(VARIABLES)}, {ARGUMENT}, {text}))) % 2 = 0",
            f"datediff(DAY, DATE'2020-01-01', dateadd(DAY, int({number}), DATE'2020-01-01')) < 5",
        ]  # fmt: skip
        if queries:
            kinds += [
                f"{number} IN (SELECT id FROM t)",
                f"EXISTS (SELECT 1 FROM t WHERE name = {self.qualified_column(relations)})",
                f"{number} NOT IN (SELECT k FROM o WHERE id > 1 AND k IS NOT NULL)",
                f"{number} <= (SELECT max(id) FROM o)",
                f"{number} >= (SELECT count(*) FROM cust WHERE cust.id > 5)",
                f"{number} IN (WITH t AS (SELECT id + 1 AS id FROM o) SELECT id FROM t)",
                f"EXISTS (WITH cust AS (SELECT * FROM t), o AS (TABLE cust) SELECT 1 FROM o WHERE id = {number})",
                *self.conditions_with_lookups(number),
            ]  # fmt: skip
        return self.draw.choice(kinds)

    def conditions_with_lookups(self, number: str) -> list[str]:
        """Return conditions whose sub-queries have lookups."""
        if "cust" in self.plain:
            return []
        join = f"FROM t AS y JOIN cust {NOW} AS z ON y.id = z.id"
        return [
            f"{number} IN (SELECT z.id {join})", f"EXISTS (SELECT 1 {join} AND z.k > 0 WHERE y.k <= {number})",
            f"{number} <= (SELECT max(z.id) {join})",
        ]  # fmt: skip

    def qualified_column(self, relations: Relations) -> str:
        """Return a text column that no relation of the query inside can be taken for."""
        found = [(a, n) for a, n in relations.columns_of_type("STRING") if a.lower() not in ("t", "o")]
        return ".".join(self.draw.choice(found)) if found else "'a'"

    def where(self, relations: Relations) -> str:
        parts = [self.condition(relations) for _ in range(self.draw.choice([0, 1, 1, 2, 3]))]
        return f" WHERE {self.draw.choice([' AND ', ' AND ', ' OR ']).join(parts)}" if parts else ""

    def items(self, relations: Relations, *, scalars: bool = True) -> list[str]:
        alias = self.draw.choice(list(relations.columns))
        structs = relations.columns_of_type("STRUCT<id: INT, name: STRING>")
        kinds = [
            "*", f"{alias}.*", f"{self.number(relations)} AS id", f"{self.text(relations)} AS name",
            self.number(relations), self.text(relations), "to_json(struct(*)) AS j", "hash(*)",
            f"array({self.text(relations)})[0] AS a",
            f"struct({self.number(relations).replace('IDENTIFIER', '1 + IDENTIFIER')}, {self.text(relations)}) AS s",
            f"{self.number(relations)} AS y, y + 1 AS z",
            f"to_json(struct({alias}.*)) AS j", "(SELECT max(id) FROM t) AS m", f"{self.number(relations)} AS `a b`",
            f"{ARGUMENT} AS p", f"{self.draw.choice(VARIABLES)} + 1 AS w",
            f"count(*) OVER (PARTITION BY {self.number(relations)}) AS o1",
            f"rank() OVER (PARTITION BY {self.text(relations)} ORDER BY {self.number(relations)}) AS o2",
            f"filter(array({self.number(relations)}), k -> k > 1) AS f", f"concat_ws('-', {self.text(relations)})",
        ]  # fmt: skip
        kinds += [scalar for scalar in (self.scalar(relations) for _ in range(2)) if scalar and scalars]
        if structs:
            kinds += [f"{'.'.join(structs[0])}.*", f"{'.'.join(structs[0])}.id"]
        return self.draw.sample(kinds, self.draw.choice([1, 2, 3]))

    def scalar(self, relations: Relations) -> str | None:
        """Return a scalar sub-query over a lookup table that reads what no relation inside can be taken for."""
        free = [
            (a, n) for a, n in relations.columns_of_type("INT", "BIGINT") if a not in ("cust", "m", *TABLES["cust"])
        ]
        if not free or "cust" in self.plain:  # of a common table expression several rows may match
            return None
        key, item = ".".join(self.draw.choice(free)), self.draw.choice(["cust.c", "label", "upper(cust.name)"])
        other = ".".join(self.draw.choice(free))
        item = f"{item} || {other}" if self.chance(0.3) else item
        return f"(SELECT {item} FROM cust WHERE cust.id = {key})"

    def finish(self, relations: Relations, from_: str, where: str) -> str:
        scalar = self.scalar(relations)
        if scalar and self.chance(0.06):
            group = self.draw.choice(["ALL", "1", "zz", scalar])
            return f"SELECT {scalar} AS zz, count(*) AS n {from_}{where} GROUP BY {group}"
        if self.chance(0.25):
            key, measure = self.text(relations), self.number(relations)
            having = self.draw.choice(["", " HAVING count(*) >= 1", " HAVING n > 0", " HAVING name IS NOT NULL"])
            order = self.draw.choice(["", " ORDER BY name", " ORDER BY n, name"])
            self.ordered_by = order.removeprefix(" ORDER BY ").split(",")[0] or None
            group = self.draw.choice(["1", "1", key, "ALL", "name", "ROLLUP (1)", "GROUPING SETS ((1), ())"])
            items = f"SELECT {key} AS name, count(*) AS n, max({measure})"
            if self.chance(0.1):
                items = f"{items}, sum({self.number(relations)}) FILTER (WHERE {self.condition(relations, False)})"
            return self.ordered(items, f"{from_}{where} GROUP BY {group}{having}{order}", from_)
        items = self.items(relations)
        distinct = "DISTINCT " if self.chance(0.05) else ""
        aliases = [re.search(r" AS (`[^`]+`|\w+)$", item) for item in items if "," not in item]
        named = [found[1] for found in aliases if found is not None]
        key = self.draw.choice(named) if named and self.chance(0.3) else ""
        self.ordered_by = key.strip("`") or None
        order = f" ORDER BY {key}{self.draw.choice(['', '', ' DESC', ' NULLS LAST'])}" if key else ""
        order = order or self.draw.choice([""] * 12 + [" ORDER BY 1", " ORDER BY ALL", " SORT BY 1", " OFFSET 0"])
        named_windows = [item for item in items if " OVER (" in item]
        qualify = " QUALIFY count(*) OVER () > 0" if not distinct and self.chance(0.04) else ""
        window = ""
        if named_windows and self.chance(0.4):
            call, spec, name = re.fullmatch(r"(.*) OVER \((.*)\) AS (\w+)", named_windows[0], re.DOTALL).groups()
            items = [f"{call} OVER win AS {name}" if item == named_windows[0] else item for item in items]
            window = f" WINDOW win AS ({spec})"
        return self.ordered(f"SELECT {distinct}{', '.join(items)}", f"{from_}{where}{window}{qualify}{order}", from_)

    def ordered(self, items: str, rest: str, from_: str) -> str:
        """Return a SELECT from its items and the rest; sometimes as Hive writes it, with FROM before it."""
        if self.chance(0.06):
            return f"{from_} {items}{rest[len(from_) :]}"
        return f"{items} {rest}"
