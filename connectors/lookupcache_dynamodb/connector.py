"""The `dynamodb` connector: items by their primary key from Amazon DynamoDB.

keys ─► BatchGetItem, and again for the keys that it left unprocessed ─► attributes with types ─► Arrow
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache.connector import Connector, LookupRequest, hide_address, is_reference, is_retryable
from lookupcache.errors import ConnectorError, OptionError, PlanError, SchemaError, nearest
from lookupcache.schema import column_names
from lookupcache.source_options import one_of, seconds
from lookupcache_dynamodb.attributes import Attribute, check_key, key_of, table_of

_CREDENTIALS = {
    "access-key-id": "aws_access_key_id",
    "secret-access-key": "aws_secret_access_key",
    "session-token": "aws_session_token",
}
_LONGEST_WAIT, _MOST_WAITS = 1.0, 8
_TEMPORARY = {
    "ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException", "InternalServerError",
    "ServiceUnavailable", "RequestTimeoutException", "TransactionInProgressException",
}  # fmt: skip


class ThrottledError(ConnectionError):
    """DynamoDB leaves all keys of a request unprocessed."""


class DynamoDbConnector(Connector):
    """Looks items up in a DynamoDB table by their primary key; an item is a row.

    ``key`` names the partition key, and after a comma the sort key; a join needs both, as keys or constants. The other
    columns are attributes of the same names, of which only the requested are fetched; one that an item lacks is null.

    | type | attribute |
    |---|---|
    | TINYINT to BIGINT, DECIMAL | N that fits without rounding, or its text |
    | FLOAT, DOUBLE | the number that is nearest to an N, or its text |
    | STRING | S; the JSON of an M, L or set |
    | BINARY, BOOLEAN | B, BOOL |
    | DATE | S ``YYYY-MM-DD`` |
    | TIMESTAMP, TIMESTAMP_NTZ | S in ISO 8601, cut to microseconds; a TIMESTAMP without a zone is UTC |
    | ARRAY, STRUCT, MAP | L or a set, in order; M; M |

    >>> DynamoDbConnector(pa.schema([("id", pa.int64()), ("name", pa.string())]),
    ...                   {"table": "customers", "key": "id", "region": "eu-central-1"})
    DynamoDbConnector({'table': 'customers', 'key': 'id', 'region': 'eu-central-1'})
    """

    options: ClassVar[Mapping[str, str]] = {
        "table": "The name or ARN of the table.",
        "key": "The partition key, and after a comma the sort key if the table has one, as in 'origin,hour'.",
        "region": "The AWS region, as in 'eu-central-1'; by default that of the worker's environment or profile.",
        "profile": "The profile of the worker's AWS settings; by default that of its environment.",
        "access-key-id": "The access key; without it, credentials are those of the worker: its environment, profile "
        "or role.",
        "secret-access-key": "The secret of the access key; 'env:NAME' or 'file:PATH' keep it out of the code.",
        "session-token": "The session token of a temporary access key.",
        "endpoint": "The URL of another endpoint, as in 'http://localhost:8000'.",
        "consistent": "'true': reads see all writes that succeeded before, at twice the price; 'false' (the default).",
        "connect.timeout": "Seconds to connect; 10 by default.",
        "read.timeout": "Seconds to wait for an answer; 60 by default.",
    }
    required = ("table", "key")
    drivers: ClassVar[Mapping[str, str]] = {"boto3": "lookupcache[dynamodb]"}
    batch_max_size = 100
    thread_safe = True
    one_row_per_key = True

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self.key = tuple(column_names(self.settings["key"]))
        self._consistent = one_of(self.settings, "consistent", ("false", "true")) == "true"
        _ = seconds(self.settings, "connect.timeout"), seconds(self.settings, "read.timeout")
        _check_options(self.settings)
        for name in self.key:
            if name not in schema.names:
                hint = nearest(name, schema.names, what="columns")
                raise SchemaError(f"Option 'key' names {name!r}, which the table's schema lacks.", hint=hint)
            check_key(schema.field(name))
        self._client: Any = None

    def open(self) -> None:
        """Make a client; raises ConnectorError without a region. Its first call connects."""
        if importlib.util.find_spec("boto3") is None:
            raise ConnectorError("Connector 'dynamodb' needs boto3.", hint="pip install 'lookupcache[dynamodb]'")
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        _keep_out_of_logs()
        given = {name: self.settings.get(option) or None for option, name in _CREDENTIALS.items()}
        timeouts = {"connect_timeout": seconds(self.settings, "connect.timeout") or 10,
                    "read_timeout": seconds(self.settings, "read.timeout") or 60}  # fmt: skip
        try:
            session = boto3.Session(
                region_name=self.settings.get("region") or None, profile_name=self.settings.get("profile") or None
            )
            # The worker repeats a call as its options say.
            self._client = session.client(
                "dynamodb", endpoint_url=self.settings.get("endpoint") or None, **given,
                config=Config(retries={"total_max_attempts": 1}, max_pool_connections=50, **timeouts),
            )  # fmt: skip
        except BotoCoreError as error:
            raise ConnectorError(f"DynamoDB cannot be reached: {error}") from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join on a part of the primary key."""
        for name in self.key:
            if name not in request.key_columns and name not in request.constants:
                raise PlanError(
                    f"Table {request.table!r}: its primary key in DynamoDB is {', '.join(self.key)}; the join has no "
                    f"{name!r}.",
                    hint=f"Join on all of {', '.join(self.key)}, or use 'lookup.cache' = 'ALL'.",
                )

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return the items of the keys."""
        self.check(request)
        columns = [
            keys.column(name).to_pylist() if name in request.key_columns else [request.constants[name]] * keys.num_rows
            for name in self.key
        ]
        fields = [self.schema.field(name) for name in self.key]
        # Keys of a join may have further columns, but an item may be named once.
        wanted = filter(None, (key_of(values, fields) for values in dict.fromkeys(zip(*columns, strict=True))))
        return self._table(request, list(self._items(list(wanted), self._projection(request))))

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield the full table; DynamoDB reads no snapshot of it."""
        pages = self._require_open().get_paginator("scan")
        for page in self._calls(pages.paginate(TableName=self.settings["table"], **self._projection(request))):
            yield from self._table(request, page["Items"]).to_batches()

    def retryable(self, error: Exception) -> bool:
        """Return whether the error is temporary: a lost or late connection, throttling, a fault of the service."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
        from botocore.exceptions import ConnectionError as NotConnectedError

        if isinstance(error, ClientError):
            return error.response["Error"]["Code"] in _TEMPORARY or _status(error) >= 500
        if isinstance(error, BotoCoreError):
            return isinstance(error, HTTPClientError | NotConnectedError)
        return is_retryable(error)

    def environment(self) -> Mapping[str, Any] | None:
        """Return the settings that boto3 reads in this process; None if the account is that of the machine's role."""
        from lookupcache.environment import cloud_settings  # Most workers do without.

        found = cloud_settings()
        if not self.settings.get("access-key-id") and not _names_account(found, self.settings.get("profile")):
            return None
        return {**(super().environment() or {}), **found}

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────

    def _items(self, keys: list[dict[str, Attribute]], projection: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the items of distinct keys; after a wait, those left unprocessed are requested again."""
        table, waits = self.settings["table"], 0
        while keys:
            wanted = {table: {"Keys": keys, **projection}}
            [answer] = self._calls(self._require_open().batch_get_item(RequestItems=one) for one in [wanted])
            yield from (item for items in answer["Responses"].values() for item in items)
            left = [key for one in answer.get("UnprocessedKeys", {}).values() for key in one["Keys"]]
            waits = waits + 1 if len(left) == len(keys) else 0
            if waits == _MOST_WAITS:
                raise ThrottledError(f"DynamoDB leaves all {len(left)} keys of a request unprocessed.")
            if left:
                time.sleep(min(_LONGEST_WAIT, 0.05 * 2**waits))
            keys = left

    def _calls(self, answers: Iterator[Any]) -> Iterator[Any]:
        """Yield answers; an error that no retry cures becomes a ConnectorError."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield from answers
        except (BotoCoreError, ClientError) as error:
            if self.retryable(error):
                raise
            raise ConnectorError(f"DynamoDB refuses to read table {self.settings['table']!r}: {error}") from None

    def _projection(self, request: LookupRequest) -> dict[str, Any]:
        # The key too, so that an item without the requested attributes is not empty.
        names = dict.fromkeys((*self.key, *request.fields))
        marks = {f"#n{number}": name for number, name in enumerate(names)}
        return {
            "ProjectionExpression": ", ".join(marks),
            "ExpressionAttributeNames": marks,
            "ConsistentRead": self._consistent,
        }

    def _table(self, request: LookupRequest, items: Sequence[Mapping[str, Any]]) -> pa.Table:
        return table_of(items, [self.schema.field(name) for name in request.fields], request.table)

    def _require_open(self) -> Any:
        if self._client is None:
            raise ConnectorError("The dynamodb connector is used before open().")
        return self._client


_ROLE = re.compile("(role_arn|sso_account_id)=.+", re.IGNORECASE)
_KEY = re.compile("aws_access_key_id=.+", re.IGNORECASE)
_PROGRAM = re.compile("(credential_process|login_session)=", re.IGNORECASE)
"""A setting of a profile by which a program or a login gives the account."""


def _names_account(found: Mapping[str, Any], profile: str | None) -> bool:
    """Return whether variables, or the sections of the profile, name the account; else it is that of the machine.

    The sections of other profiles do not matter, nor do variables where an option names the profile, nor empty values.
    """
    given = {} if profile else found.get("variables", {})
    if given.get("AWS_ACCESS_KEY_ID") or (given.get("AWS_ROLE_ARN") and given.get("AWS_WEB_IDENTITY_TOKEN_FILE")):
        return True
    # In botocore's order, in which an empty variable counts.
    profile = profile or os.environ.get("AWS_DEFAULT_PROFILE", os.environ.get("AWS_PROFILE")) or "default"
    config, credentials = (_lines_of(found.get(file, {}), profile) for file in ("config", "credentials"))
    if any(map(_ROLE.match, [*config, *credentials])) or any(map(_KEY.match, credentials)):
        return True
    return any(map(_KEY.match, config)) and not any(map(_PROGRAM.match, [*config, *credentials]))


def _lines_of(file: Mapping[str, Sequence[str]], profile: str) -> list[str]:
    sections = (lines for name, lines in file.items() if name.removeprefix("profile ").strip(" \t\"'") == profile)
    return [line for lines in sections for line in lines]


def _status(error: Any) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


def _keep_out_of_logs() -> None:
    """Leave botocore's messages for debugging out, unless they are asked for by its name: they show session tokens."""
    logger = logging.getLogger("botocore")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def _check_options(settings: Mapping[str, str]) -> None:
    endpoint = settings.get("endpoint") or ""
    if endpoint and not is_reference(endpoint) and not endpoint.startswith(("http://", "https://")):
        raise OptionError(
            f"Option 'endpoint' is {hide_address(endpoint)!r}, which is no URL.", hint="As in 'http://localhost:8000'."
        )
    if bool(settings.get("access-key-id")) != bool(settings.get("secret-access-key")):
        raise OptionError(
            "Options 'access-key-id' and 'secret-access-key' belong together.",
            hint="Set both, or none: then credentials are those of the worker.",
        )
