"""Reads a service's answers: vectors by their index, and the rows of a chat.

document ─► `vectors` or `rows`; or `AnswerError`, the error of one key
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from lookupcache.arrays import to_numpy
from lookupcache.formats.json_text import parse_json, shorten
from lookupcache.formats.json_values import MismatchError, json_array
from lookupcache.http.client import HttpProtocolError
from lookupcache.schema import shown_type
from lookupcache_openai.answer_schema import JsonSchema, mismatch


class AnswerError(ValueError):
    """The answer for a key cannot be used: a refusal, cut off, or not as requested; ``hint`` has the cure."""

    def __init__(self, fact: str, hint: str | None = None) -> None:
        super().__init__(fact)
        self.hint = hint


def parse_document(body: bytes | None, shown: str) -> dict[str, Any]:
    """Parse a response; raises HttpProtocolError, as a proxy may have cut it."""
    try:
        document = parse_json(body or b"")
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise HttpProtocolError(f"The answer of {shown} is not a JSON object, or only a part of one.")
    return document


def vectors(document: Mapping[str, Any], texts: int, type_: pa.DataType, dimensions: int | None) -> list[Any]:
    """Return for each text its vector, or an `AnswerError`; raises AnswerError if entries cannot be attributed."""
    entries = document.get("data")
    if not isinstance(entries, list):
        raise AnswerError(f"has no list 'data': {shorten(document, 100)}")
    found: list[Any] = [AnswerError("has no embedding with the text's index") for _ in range(texts)]
    seen = set[int]()
    for entry in entries:
        index = entry.get("index") if isinstance(entry, dict) else None
        if type(index) is not int or not 0 <= index < texts:
            raise AnswerError(f"has an embedding with the index {shorten(index)}, for {texts} texts")
        found[index] = AnswerError("has several embeddings with the text's index")
        if index not in seen:
            found[index] = _vector(entry.get("embedding"), type_.value_type, dimensions)
        seen.add(index)
    return found


def _vector(value: Any, type_: pa.DataType, dimensions: int | None) -> Any:
    if not isinstance(value, list) or not value or not {int, Decimal, float}.issuperset(map(type, value)):
        return AnswerError(f"has an embedding that is no list of numbers: {shorten(value)}")
    if dimensions is not None and len(value) != dimensions:
        return AnswerError(
            f"has an embedding of {len(value)} numbers, not {dimensions}", "Does the model support 'dimensions'?"
        )
    try:
        vector = to_numpy(json_array(value, type_))
    except MismatchError:
        vector = np.array([np.inf])
    if not np.isfinite(vector).all():
        return AnswerError(f"has a number that is no {shown_type(type_)}")
    return vector


def content_of(document: Mapping[str, Any]) -> str:
    """Return the text of a chat's answer; raises AnswerError for a refusal, or for an answer that was cut."""
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise AnswerError(f"has no message: {shorten(document, 100)}")
    reason = choice.get("finish_reason")
    if reason == "length":
        raise AnswerError("was cut at the maximum number of tokens", "Raise option 'max-tokens'.")
    if reason == "content_filter":
        raise AnswerError("was cut by the service's content filter")
    if message.get("refusal"):
        raise AnswerError(f"is a refusal: {shorten(message['refusal'], 200)}")
    if not isinstance(message.get("content"), str):
        raise AnswerError(f"has no text; the reason for its end is {shorten(reason)}")
    return str(message["content"])


def columns_of(content: str, schema: JsonSchema, columns: pa.Schema, has_many_rows: bool) -> dict[str, pa.Array]:
    """Return the rows of a chat's answer, as columns; raises AnswerError if it does not fit the schema."""
    try:
        answer = parse_json(content)
    except ValueError as error:
        raise AnswerError(f"is not JSON: {error}", "Does the model support response_format json_schema?") from None
    if found := mismatch(answer, schema):
        raise AnswerError(f"does not fit the table's schema: {found}")
    rows = answer["rows"] if has_many_rows else [answer]
    return {field.name: _array(field, [row[field.name] for row in rows]) for field in columns}


def _array(field: pa.Field, values: list[Any]) -> pa.Array:
    try:
        return json_array(values, field.type)
    except MismatchError as misfit:
        raise AnswerError(
            f"holds {shorten(misfit.value)} for column {field.name!r}, which is no {shown_type(field.type)}"
        ) from None
