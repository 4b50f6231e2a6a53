"""The dynamodb connector on moto's server, checked by the suite that every connector has."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal

import boto3
import pyarrow as pa
import pytest
from servers import AwsServer, free_port

from lookupcache import LookupTable
from lookupcache.connector import LookupRequest, connector_class
from lookupcache.errors import ConnectorError, LookupFailedError, OptionError, PlanError, SchemaError, SourceError
from lookupcache.testing import ConnectorSuite
from lookupcache.testing.join import LocalJoin, Wanted

pytestmark = pytest.mark.slow
_numbers = itertools.count()
LOGIN = {"access-key-id": "AKIDSHOP", "secret-access-key": "kx7secretq", "region": "eu-central-1"}
_MOST = 9.9e125
"""About the largest number of DynamoDB."""


@pytest.fixture(scope="module")
def server():
    started = AwsServer().start()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def client(server):
    made = boto3.client(
        "dynamodb", endpoint_url=f"http://127.0.0.1:{server.port}", region_name=LOGIN["region"],
        aws_access_key_id=LOGIN["access-key-id"], aws_secret_access_key=LOGIN["secret-access-key"],
    )  # fmt: skip
    yield made
    made.close()


@pytest.fixture
def load(client, server):
    """Return a function that creates a table with items, and returns the connector's options."""

    def load(rows, key):
        name = f"t{next(_numbers)}"
        kinds = ("HASH", "RANGE")
        client.create_table(
            TableName=name, BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": one, "KeyType": kind} for one, kind in zip(key, kinds, strict=False)],
            AttributeDefinitions=[{"AttributeName": one, "AttributeType": key_kind(rows.schema.field(one).type)}
                                  for one in key],
        )  # fmt: skip
        items = [
            {field.name: stored(value, field.type) for field, value in zip(rows.schema, row, strict=True)
             if value is not None or len(row) % 2}
            for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)
        ]  # fmt: skip
        for start in range(0, len(items), 25):
            client.batch_write_item(
                RequestItems={name: [{"PutRequest": {"Item": item}} for item in items[start : start + 25]]}
            )
        return {"endpoint": f"http://127.0.0.1:{server.port}", "table": name, "key": ",".join(key), **LOGIN}

    return load


def key_kind(type_):
    if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
        return "N"
    return "B" if pa.types.is_binary(type_) else "S"


def stored(value, type_):
    """Return a value as users of DynamoDB store it: what it has no type for, as a text."""
    if value is None:
        return {"NULL": True}
    if pa.types.is_map(type_):
        return {"M": {name: stored(item, type_.item_type) for name, item in value}}
    if pa.types.is_struct(type_):
        return {"M": {member.name: stored(value[member.name], member.type) for member in type_}}
    if pa.types.is_list(type_):
        return {"L": [stored(item, type_.value_type) for item in value]}
    if isinstance(value, bool | bytes):
        return {"BOOL" if isinstance(value, bool) else "B": value}
    if isinstance(value, int | Decimal) or (isinstance(value, float) and _is_number(value)):
        return {"N": format(value, "f") if isinstance(value, Decimal) else repr(value)}
    if isinstance(value, float):
        return {"S": {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))}
    return {"S": value if isinstance(value, str) else value.isoformat()}


def _is_number(value):
    return math.isfinite(value) and math.copysign(1, value) * abs(value) != 0 and 1e-130 < abs(value) < _MOST


class TestDynamoDb(ConnectorSuite):
    connector = "dynamodb"
    unique_keys = True
    can_scan = True
    unsupported_keys = {  # noqa: RUF012
        **dict.fromkeys(("float", "double"), "a number has decimal digits"),
        **dict.fromkeys(("timestamp", "timestamp_ntz"), "a text has several spellings"),
        "boolean": "no key is",
        "long string": "a key has at most 2,048 bytes",
        "empty string": "no key is empty",
        "empty binary": "no key is empty",
    }
    test_a_composite_key = None  # A primary key has one or two columns.

    @pytest.fixture
    def load(self, load):
        return load


def table_of(options, ddl="id BIGINT, name STRING", **more):
    return LookupTable("t", ddl, {"connector": "dynamodb", **options, **more})


PEOPLE = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["ann", "bob"]})
ID = Wanted(key=("id",))


def test_a_key_of_two_columns(load):
    rows = pa.table({"a": ["x", "x", "y"], "b": pa.array([1, 2, 1], pa.int32()), "n": pa.array([1, 2, 3], pa.int64())})
    table = table_of(load(rows, ["a", "b"]), "a STRING, b INT, n BIGINT")
    with LocalJoin(table, Wanted(key=("a", "b"))) as join:
        assert sorted(join.rows([("x", 2), ("y", 1), ("y", 2)])) == [("x", 2, 2), ("y", 1, 3)]
    with LocalJoin(table, Wanted(key=("b",), constants={"a": "x"})) as join:
        assert sorted(join.rows([(1,), (3,)])) == [("x", 1, 1)]


def test_a_join_by_a_part_of_the_key_is_refused():
    table = table_of({"table": "t", "key": "a, `b`"}, "a STRING, b INT")
    with pytest.raises(PlanError, match="the join has no 'b'"):
        table.connector.check(LookupRequest(table="t", key_columns=("a",)))


def test_keys_left_unprocessed_are_requested_again(load):
    """An answer has at most 16 MB."""
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "name": [f"{number}" * 150_000 for number in range(100)]})
    rows = rows.set_column(1, "name", pa.array([text[:300_000] for text in rows.column("name").to_pylist()]))
    with LocalJoin(table_of(load(rows, ["id"])), ID) as join:
        found = dict(join.rows([(number,) for number in range(100)]))
    assert found == dict(zip(range(100), rows.column("name").to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("attribute", "type_", "value"),
    [
        ({"SS": ["b", "a"]}, "ARRAY<STRING>", ["a", "b"]),
        ({"NS": ["10", "9"]}, "ARRAY<INT>", [9, 10]),
        ({"BS": [b"b", b"a"]}, "ARRAY<BINARY>", [b"a", b"b"]),
        ({"M": {"a": {"N": "1"}, "b": {"L": [{"BOOL": True}]}}}, "STRING", '{"a":1,"b":[true]}'),
        ({"N": "1E+2"}, "INT", 100),
    ],
)
def test_sets_documents_and_numbers(client, load, attribute, type_, value):
    options = load(PEOPLE, ["id"])
    client.put_item(TableName=options["table"], Item={"id": {"N": "7"}, "name": attribute})
    with LocalJoin(table_of(options, f"id BIGINT, name {type_}"), ID) as join:
        assert join.rows([(7,)]) == [(7, value)]


@pytest.mark.parametrize(
    ("attribute", "type_"),
    [({"N": "7.5"}, "BIGINT"), ({"S": "x"}, "BINARY"), ({"N": "7"}, "STRING"), ({"N": "1.001"}, "DECIMAL(9,2)"),
     ({"BOOL": True}, "INT"), ({"S": "1 May"}, "DATE")],
)  # fmt: skip
def test_a_value_of_another_type_is_an_error(client, load, attribute, type_):
    options = load(PEOPLE, ["id"])
    client.put_item(TableName=options["table"], Item={"id": {"N": "7"}, "name": attribute})
    with (
        LocalJoin(table_of(options, f"id BIGINT, name {type_}"), ID) as join,
        pytest.raises(SourceError, match=r"column .name.: DynamoDB has a value of type .* that is no"),
    ):
        join.rows([(1,), (7,)] if type_ == "STRING" else [(7,)])


def test_a_missing_table_is_an_error_that_is_not_retried(load):
    table = table_of({**load(PEOPLE, ["id"]), "table": "nowhere"}, **{"lookup.max-retries": "50"})
    with LocalJoin(table, ID) as join, pytest.raises(ConnectorError, match="refuses to read table 'nowhere'"):
        join.rows([(1,)])


def test_an_endpoint_that_nobody_listens_at_is_retried(load):
    options = {**load(PEOPLE, ["id"]), "endpoint": f"http://127.0.0.1:{free_port()}", "lookup.retry.delay": "1 ms"}
    with LocalJoin(table_of(options), ID) as join, pytest.raises(LookupFailedError, match="4 attempts"):
        join.rows([(1,)])


@pytest.mark.parametrize(
    ("options", "expected", "message"),
    [
        ({"key": "idd"}, SchemaError, "'key' names 'idd'"),
        ({"key": "x"}, SchemaError, "cannot be a key of DynamoDB"),
        ({"endpoint": "localhost"}, OptionError, "'endpoint' is 'localhost'"),
        ({"access-key-id": "AKID"}, OptionError, "belong together"),
        ({"consistent": "yes"}, OptionError, "'consistent'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, expected, message):
    with pytest.raises(expected, match=message):
        table_of({"table": "t", "key": "id", **options}, "id BIGINT, x DOUBLE")


# ── what is read from outside ────────────────────────────────────────────────────────────────────────────────


ROLE = {"AWS_ROLE_ARN": "arn:aws:iam::7:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}


@pytest.mark.parametrize(
    ("credentials", "profile", "variables", "is_known"),
    [
        ("", "", {}, False),
        ("[default]\naws_access_key_id = AKIDSHOP\n", "", {}, True),
        ("[default]\nAWS_ACCESS_KEY_ID: AKIDSHOP\n", "", {}, True),
        ("[default]\naws_access_key_id =\naws_secret_access_key =\n", "", {}, False),
        ("[default]\nregion = eu-west-1 # of role_arn=x\nrole_arn_of_shop = x\n", "", {}, False),
        ("[shop]\naws_access_key_id = AKIDSHOP\n", "", {}, False),
        ("[shop]\nrole_arn = arn:aws:iam::7:role/r\n", "shop", {}, True),
        ("", "", {"AWS_ACCESS_KEY_ID": "AKIDSHOP"}, True),
        ("", "", {"AWS_ACCESS_KEY_ID": ""}, False),
        ("", "shop", {"AWS_ACCESS_KEY_ID": "AKIDSHOP"}, False),
        ("", "", ROLE, True),
        ("", "", ROLE | {"AWS_ROLE_ARN": ""}, False),
        ("", "", ROLE | {"AWS_WEB_IDENTITY_TOKEN_FILE": ""}, False),
        ("[shop]\naws_access_key_id = AKIDSHOP\n", "", {"AWS_PROFILE": "shop"}, True),
        ("[shop]\naws_access_key_id = AKIDSHOP\n", "", {"AWS_PROFILE": "shop", "AWS_DEFAULT_PROFILE": "bare"}, False),
        ("[shop]\naws_access_key_id = AKIDSHOP\n", "", {"AWS_PROFILE": "bare", "AWS_DEFAULT_PROFILE": "shop"}, True),
    ],
)
def test_rows_of_an_unknown_account_are_not_shared(credentials, profile, variables, is_known, tmp_path, monkeypatch):
    """The account is unknown where only the machine tells it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", *ROLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "credentials").write_text(credentials)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    options = {"table": "t", "key": "id", **({"profile": profile} if profile else {})}
    found = connector_class("dynamodb")(pa.schema([("id", pa.int64())]), options).environment()
    assert (found is not None) == is_known


ACCESS = "aws_access_key_id = AKIDSHOP\naws_secret_access_key = x\n"
PROGRAM = """credential_process = echo '{"Version": 1, "AccessKeyId": "AKIDOFMACHINE", "SecretAccessKey": "x"}'\n"""
SSO = "sso_start_url = https://x\nsso_region = eu-west-1\nsso_role_name = r\nsso_account_id = 7\n"
BASE = f"[profile base]\n{ACCESS}"
IN_CONFIG = [ACCESS, PROGRAM, SSO, "role_arn = arn:aws:iam::7:role/r\nsource_profile = base\n"]


@pytest.mark.parametrize("in_config", [c for n in range(4) for c in itertools.combinations(IN_CONFIG, n)])
@pytest.mark.parametrize("in_credentials", [(), (ACCESS,), (PROGRAM,), (ACCESS, PROGRAM)])
def test_an_account_is_known_if_botocore_takes_it_from_the_settings(in_config, in_credentials, tmp_path, monkeypatch):
    from botocore.session import Session

    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", *ROLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for file, lines in {"AWS_CONFIG_FILE": in_config, "AWS_SHARED_CREDENTIALS_FILE": in_credentials}.items():
        (tmp_path / file).write_text("\n".join(["[default]", *lines, BASE if file == "AWS_CONFIG_FILE" else ""]))
        monkeypatch.setenv(file, str(tmp_path / file))
    taken = Session().get_credentials()
    is_known = taken is not None and taken.method != "custom-process"
    found = connector_class("dynamodb")(pa.schema([("id", pa.int64())]), {"table": "t", "key": "id"}).environment()
    assert (found is not None) == is_known
