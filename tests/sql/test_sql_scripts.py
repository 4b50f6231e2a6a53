"""Scripts with lookups: how they are read, and what is refused, with the position.

`sql_hostile` has scripts that run, and Spark's results.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql import types as T  # noqa: N812

from lookupcache import StatementError
from lookupcache.planner.clauses import tokens
from lookupcache.sql.script_tree import Block, Choice, Jump, Loop, Step, parse_script
from lookupcache.sql.scripts import run_script
from lookupcache.sql.text import Statement

REFUSED = {
    "BEGIN SELECT 1; FOR x AS SELECT 1 SELECT 2; END": ("semicolon after each", 45),
    "BEGIN a: FOR A AS SELECT 1 DO SELECT 2; END FOR; END": ("label 'A' already", 14),
    "BEGIN FOR a AS SELECT 1 DO a: LOOP SELECT 2; END LOOP; END FOR; END": ("label 'a' already", 28),
    "BEGIN FOR a AS SELECT 1 DO DECLARE x INT; END FOR; END": ("declares variables before", 28),
    "BEGIN DECLARE c CURSOR FOR SELECT 1; SELECT 2; END": ("cannot contain CURSOR", 7),
    "BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION SELECT 1; DECLARE x INT; SELECT 2; END": ("handlers behind them", 55),
    "BEGIN a: LOOP BEGIN DECLARE EXIT HANDLER FOR NOT FOUND LEAVE a; END; END LOOP; END": ("no block 'a' here", 62),
    "BEGIN SIGNAL a; END": ("cannot contain SIGNAL", 7),
    "BEGIN SELECT 1; EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END; END": ("contain another BEGIN", 17),
    "BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SELECT 1; SELECT 2; END": ("cannot contain CONTINUE handlers", 7),
    "BEGIN DECLARE OR REPLACE x INT; SELECT x; END": ("cannot contain OR REPLACE", 7),
    "BEGIN SELECT 1; DECLARE x INT; SELECT x; END": ("declares variables before", 17),
    "BEGIN DECLARE session.x INT; SELECT x; END": ("has no qualifier", 7),
    "BEGIN DECLARE VARIABLE x, system.session.y INT; SELECT x; END": ("has no qualifier", 7),
    "BEGIN SELECT 1 END": ("semicolon after each", 16),
    "BEGIN IF 1 = 1 THEN SELECT 1; END WHILE; END": ("IF is expected here", 35),
    "BEGIN IF 1 = 1 THEN SELECT 1; END IF SELECT 2; END": ("; is expected here", 38),
    "BEGIN LOOP SELECT 1; END": ("LOOP is expected", 22),
    "BEGIN a: LOOP LEAVE b; END LOOP; END": ("no block 'b' here to LEAVE", 21),
    "BEGIN a: BEGIN ITERATE a; END; END": ("no block 'a' here to ITERATE", 24),
    "BEGIN a: IF 1 = 1 THEN LEAVE a; END IF; END": ("have a label", 7),
    "BEGIN a: LOOP A: BEGIN LEAVE a; END; END LOOP; END": ("label 'A' already", 15),
    "BEGIN SELECT 1; END SELECT 2": ("A script ends with END", 21),
    "BEGIN WHILE DO SELECT 1; END WHILE; END": ("semicolon after each", 13),
}


def parse(text):
    return parse_script(Statement.of(text), list(tokens(text)))


@pytest.mark.parametrize(("text", "expected"), REFUSED.items())
def test_what_cannot_be_run_is_refused_at_its_position(text, expected):
    with pytest.raises(StatementError) as refused:
        parse(text)
    fact, column = expected
    assert fact in refused.value.fact
    assert refused.value.position.column == column


def test_a_script_is_split_at_semicolons_only():
    text = "BEGIN DECLARE `a;b` INT; ; SELECT ';' -- ; END;\n, CASE WHEN TRUE THEN 1 END; TABLE t; END"
    steps = parse(text).body
    assert [(step.first, step.is_query) for step in steps] == [("DECLARE", False), ("SELECT", True), ("TABLE", True)]
    assert steps[1].statement.written.endswith("CASE WHEN TRUE THEN 1 END")


def shape(node):
    """Return a tree with the text of its statements."""
    if isinstance(node, Step):
        return node.statement.sql
    if isinstance(node, Block):
        return [node.label, *map(shape, node.body)]
    if isinstance(node, Choice):
        tree = [[one.sql, shape(block)] for one, block in node.branches], node.otherwise and shape(node.otherwise)
        return tree if node.value is None else (node.value.sql, *tree)
    if isinstance(node, Loop):
        return node.label, node.condition and node.condition.sql, shape(node.body), node.until and node.until.sql
    assert isinstance(node, Jump)
    return node.label, node.repeats


TREES = {
    "IF CASE WHEN a THEN b END THEN x; ELSEIF c THEN ELSE y; z; END IF": (
        [["CASE WHEN a THEN b END", ["", "x"]], ["c", [""]]],
        ["", "y", "z"],
    ),
    "CASE WHEN (a) THEN x; WHEN b THEN IF c THEN y; END IF; END CASE": (
        [["(a)", ["", "x"]], ["b", ["", ([["c", ["", "y"]]], None)]]],
        None,
    ),
    "CASE v + 1 WHEN 2 THEN x; ELSE y; END CASE": ("v + 1", [["2", ["", "x"]]], ["", "y"]),
    "l: WHILE a DO ITERATE L; END WHILE l": ("l", "a", ["", ("l", True)], None),
    "REPEAT CASE WHEN a THEN x; END CASE; UNTIL CASE a WHEN b THEN c END END REPEAT": (
        "",
        None,
        ["", ([["a", ["", "x"]]], None)],
        "CASE a WHEN b THEN c END",
    ),
    "IF :p > 5 THEN x; END IF": ([[":p > 5", ["", "x"]]], None),
    "CASE :p WHEN 1 THEN x; END CASE": (":p", [["1", ["", "x"]]], None),
    "l: WHILE :p DO x; END WHILE": ("l", ":p", ["", "x"], None),
    "BEGIN NOT ATOMIC x; END": ["", "x"],
    "l: LOOP k: BEGIN LEAVE l; END k; END LOOP": ("l", None, ["", ["k", ("l", False)]], None),
    "begin.x": "begin.x",
}


@pytest.mark.parametrize(("text", "expected"), TREES.items())
def test_what_controls_a_script_is_read_as_a_tree(text, expected):
    if text == "begin.x":
        text = "SELECT begin.x AS begin FROM a AS begin"
        expected = text
    [node] = parse(f"BEGIN {text}; END;").body
    assert shape(node) == expected


class Interpreter:
    """Evaluates the statements of a script in Python: expressions, and SET of one variable."""

    def __init__(self):
        self.variables, self.selected = {}, []
        self.spark = self

    def sql(self, text):
        """Declare or drop a variable."""
        words = text.split()
        if words[0] == "DECLARE":
            self.variables[words[1]] = int(words[-1])
        else:
            assert self.variables.pop(words[-1].strip("`")) is not None

    def run(self, statement):
        text = statement.sql
        if text.startswith("DECLARE"):
            return self.sql(text)
        if text.startswith("SET VAR"):
            name, value = text.removeprefix("SET VAR").split(":=")
            self.variables[name.strip()] = eval(value, {}, self.variables)
            return None
        value = eval(text.removeprefix("SELECT").strip(), {"NULL": None}, self.variables)
        kind = T.LongType() if isinstance(value, int) and not isinstance(value, bool) else T.BooleanType()
        if not text.startswith("SELECT ("):
            self.selected.append(value)
        schema = [SimpleNamespace(dataType=kind)]
        return SimpleNamespace(schema=schema, collect=lambda: [[value]], localCheckpoint=lambda: value)


RUNS = {
    "DECLARE n INT DEFAULT 0; l: WHILE n < 6 DO SET n := n + 1; IF n == 2 THEN ITERATE l; ELSEIF n > 4 THEN LEAVE l; "
    "END IF; SELECT n; END WHILE": [1, 3, 4],
    "DECLARE n INT DEFAULT 0; a: LOOP b: REPEAT SET n := n + 1; IF n == 3 THEN ITERATE a; END IF; SELECT n; "
    "UNTIL n % 2 == 0 END REPEAT b; IF n > 5 THEN LEAVE a; END IF; END LOOP; SELECT 99": [1, 2, 4, 5, 6, 99],
    "IF NULL THEN SELECT 1; ELSE BEGIN DECLARE m INT DEFAULT 7; SELECT m; END; END IF": [7],
    "CASE WHEN 1 == 2 THEN SELECT 1; WHEN 2 == 2 THEN SELECT 2; WHEN 3 == 3 THEN SELECT 3; END CASE": [2],
    "l: BEGIN SELECT 1; k: BEGIN LEAVE l; END; SELECT 2; END; SELECT 3": [1, 3],
    "a: WHILE 1 == 1 DO WHILE 1 == 1 DO LEAVE a; END WHILE; SELECT 1; END WHILE; SELECT 2": [2],
    "IF 1 == 2 THEN SELECT 1; END IF": [],
}


@pytest.mark.parametrize(("text", "expected"), RUNS.items())
def test_conditions_and_loops_decide_what_runs(text, expected):
    text, spark = f"BEGIN {text}; END", Interpreter()
    result = run_script(spark, Statement.of(text), list(tokens(text)), spark.run)
    assert spark.selected == expected
    assert result == (expected[-1] if expected else None)
    assert spark.variables == {}


def test_a_condition_is_a_boolean():
    text, spark = "BEGIN IF 1 + 1 THEN SELECT 1; END IF; END", Interpreter()
    with pytest.raises(StatementError, match="is a bigint, not a boolean") as refused:
        run_script(spark, Statement.of(text), list(tokens(text)), spark.run)
    assert refused.value.position.column == 10
