"""How many messages a statement's planning sends to the JVM: a cost that does not depend on the machine's load."""

from __future__ import annotations

import pytest
from py4j.clientserver import ClientServerConnection

from lookupcache import LookupSession, LookupTable

pytestmark = pytest.mark.spark

QUERY = "SELECT o.id, {} FROM range(9) AS o {} WHERE o.id > 1"


@pytest.mark.parametrize(("joins", "most"), [(1, 72), (5, 85)])
def test_planning_sends_few_messages(spark, monkeypatch, joins, most):
    session = LookupSession(spark.newSession())
    for number in range(joins):
        table = LookupTable.from_function("t", "n BIGINT, v BIGINT", key=["n"], function=lambda n: [(n, n)])
        session.register_table(table, f"t{number}")
    columns = ", ".join(f"t{number}.v * 2 AS v{number}" for number in range(joins))
    texts = [f"LEFT JOIN t{n} FOR SYSTEM_TIME AS OF PROCTIME() ON o.id = t{n}.n" for n in range(joins)]
    query = QUERY.format(columns, " ".join(texts))
    session.sql(query)  # What is read once per session is not counted.
    sent, send = [], ClientServerConnection.send_command

    def count(connection, command, *args):
        sent.append(command[0])
        return send(connection, command, *args)

    monkeypatch.setattr(ClientServerConnection, "send_command", count)
    session.sql(query)
    # Where Python collects its garbage, it tells the JVM of each object that it has no more use for.
    assert joins < len(sent) - sent.count("m") <= most
