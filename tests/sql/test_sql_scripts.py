"""Scripts with lookups: what is refused, with the position. `sql_hostile` has scripts that run, and Spark's results."""

from __future__ import annotations

import pytest

from lookupcache import StatementError
from lookupcache.planner.clauses import tokens
from lookupcache.sql.scripts import steps_of
from lookupcache.sql.text import Statement

REFUSED = {
    "BEGIN IF 1 = 1 THEN SELECT 1; END IF; END": ("cannot contain IF", 7),
    "BEGIN SELECT 1; WHILE x > 1 DO SELECT 2; END WHILE; END": ("cannot contain WHILE", 17),
    "BEGIN CASE 1 WHEN 1 THEN SELECT 1; END CASE; END": ("cannot contain CASE", 7),
    "BEGIN BEGIN SELECT 1; END; END": ("cannot contain BEGIN", 7),
    "BEGIN SELECT 1; EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END; END": ("contain another BEGIN", 17),
    "BEGIN lbl: LOOP LEAVE lbl; END LOOP lbl; END": ("cannot contain a label", 7),
    "BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SELECT 1; SELECT 2; END": ("cannot contain HANDLER", 7),
    "BEGIN DECLARE OR REPLACE x INT; SELECT x; END": ("cannot contain OR REPLACE", 7),
    "BEGIN SELECT 1; DECLARE x INT; SELECT x; END": ("declares variables before", 17),
    "BEGIN DECLARE session.x INT; SELECT x; END": ("has no qualifier", 7),
    "BEGIN DECLARE VARIABLE x, system.session.y INT; SELECT x; END": ("has no qualifier", 7),
    "BEGIN SELECT 1 END": ("semicolon after each", 16),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.items())
def test_what_controls_a_script_is_refused_at_its_position(text, expected):
    with pytest.raises(StatementError) as refused:
        steps_of(Statement.of(text), list(tokens(text)))
    fact, column = expected
    assert fact in refused.value.fact
    assert refused.value.position.column == column


def test_a_script_is_split_at_semicolons_only():
    text = "BEGIN DECLARE `a;b` INT; ; SELECT ';' -- ; END;\n, CASE WHEN TRUE THEN 1 END; TABLE t; END"
    steps = steps_of(Statement.of(text), list(tokens(text)))
    assert [(step.first, step.is_query) for step in steps] == [("DECLARE", False), ("SELECT", True), ("TABLE", True)]
    assert steps[1].statement.written.endswith("CASE WHEN TRUE THEN 1 END")
