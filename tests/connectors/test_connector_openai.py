"""The openai connector on a service of that protocol, in a process of its own, which errs as real ones do."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from contextlib import suppress
from email.utils import formatdate
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lookupcache_openai import OpenAIConnector
from lookupcache_openai.answer_schema import object_schema
from lookupcache_openai.answers import AnswerError, columns_of, content_of, vectors
from lookupcache_openai.prompt import Prompt
from lookupcache_openai.usage import BudgetError, Ledger, LedgerLimits, Prices, Tokens
from model_service import KEY, ModelService, tokens_of, vector_of
from pyspark.errors import PythonException
from servers import HttpServer, Reply
from time_limit import LIMIT

from lookupcache import LookupJoin
from lookupcache.connector import LookupRequest, connector_class
from lookupcache.errors import (
    ConnectorError,
    LookupFailedError,
    LookupTimeoutError,
    OptionError,
    PlanError,
    SchemaError,
    SourceError,
)  # fmt: skip
from lookupcache.formats.json_text import json_text
from lookupcache.metrics import LookupMetrics
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable
from lookupcache.testing import ConnectorSuite, FakeClock
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.testing.samples import TYPES

TEXT = Wanted(key=("text",))
VECTORS = "text STRING, v ARRAY<FLOAT>"
LABELS = "text STRING, label STRING NOT NULL, score INT"
MEMBERS = ("index", "embedding", "message", "content", "label", "score", "prompt_tokens")
QUICK = {"lookup.retry.delay": "1 ms", "lookup.retry.max-delay": "5 ms"}
LENIENT = {"lookup.on-error": "null", "lookup.error-column": "e"}


@pytest.fixture(scope="module")
def running_models():
    service = ModelService()
    try:
        service.start()
        yield service
    finally:
        service.kill()


@pytest.fixture
def models(running_models):
    """A service that answers each prompt 'is it <text>?' about some words."""
    running_models.reset()
    words = ["good", "bad", "ugly"]
    running_models.set_rows({f"is it {word}?": [labelled(word, len(word))] for word in words})
    return running_models


def labelled(label, score):
    return json.dumps({"label": label, "score": score})


def embeddings(models, schema=VECTORS, **options):
    own = {"connector": "openai", "url": f"{models.url}/v1", "task": "embeddings", "model": "m", "prompt": "{text}"}
    return LookupTable("t", schema, {**own, "api-key": KEY, **QUICK, **options})


def chat(models, schema=LABELS, **options):
    return embeddings(models, schema, **{"task": "chat", "prompt": "is it {text}?", **options})


def looked_up(table, *texts):
    """Return the rows of these texts, and the metrics."""
    with LocalJoin(table, TEXT) as join:
        rows = join.rows([(text,) for text in texts])
        return rows, LookupMetrics.of(join.source.counters)


def rows_of(table, *texts):
    return looked_up(table, *texts)[0]


def vectors_of(*texts):
    return [(text, vector_of(text)) for text in texts]


# ── what is requested ────────────────────────────────────────────────────────────────────────────────────────


def test_embeddings_take_many_texts_per_request_each_once(models):
    table = embeddings(models, "text STRING, n INT, v ARRAY<DOUBLE>", prompt="{text}{n}", **{"batch-size": "3"})
    with LocalJoin(table, Wanted(key=("text", "n"), columns=("v",))) as join:
        found = join.rows([("x", 11), ("x1", 1), ("y", 0), ("é", 5)])
    assert found == [(vector_of(text),) for text in ("x11", "x11", "y0", "é5")]
    assert sorted(body["input"] for body in models.bodies()) == [["x11", "y0"], ["é5"]]
    assert models.bodies()[0]["encoding_format"] == "float"


def test_a_vector_has_the_requested_length(models):
    assert rows_of(embeddings(models, dimensions="5"), "a") == [("a", vector_of("a", 5))]


def test_a_chat_is_one_prompt_with_the_columns_as_its_schema(models):
    models.set_rows({"is it AT/5?": [labelled("yes", 1)]})
    table = chat(
        models, "a STRING, b INT, label STRING NOT NULL, score INT", prompt="is it {a}/{b}?", system="Be brief.",
        temperature="0.5", **{"max-tokens": "50"},
    )  # fmt: skip
    with LocalJoin(table, Wanted(key=("a",), constants={"b": 5}, columns=("b", "label"))) as join:
        assert join.rows([("AT",)]) == [(5, "yes")]
    [body] = models.bodies()
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "is it AT/5?"}]
    assert (body["model"], body["temperature"], body["max_completion_tokens"]) == ("m", 0.5, 50)
    assert body["response_format"]["json_schema"]["strict"] is True
    assert body["response_format"]["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"label": {"type": "string"}, "score": {"type": ["integer", "null"]}},
        "required": ["label", "score"],
        "additionalProperties": False,
    }


def test_a_service_that_knows_max_tokens_by_its_former_name(models):
    rows_of(chat(models, **{"max-tokens": "50", "max-tokens.parameter": "max_tokens"}), "good")
    assert models.bodies()[0]["max_tokens"] == 50


def test_chats_run_concurrently(models):
    models.hang()
    with ThreadPool(1) as pool:
        found = pool.apply_async(looked_up, (chat(models, **{"lookup.async.capacity": "2"}), "good", "bad", "ugly"))
        models.wait_open(2)
        models.heal()
        models.release()
        assert [row[1] for row in found.get(60)[0]] == ["good", "bad", "ugly"]
    assert models.most_open() == 2


@pytest.mark.parametrize("braces", ["{", "}", "{}", "is it {text}? {"])
def test_a_brace_of_no_column(models, braces):
    with pytest.raises(OptionError, match="'prompt' has a brace"):
        chat(models, prompt=braces)


def test_values_of_a_prompt_are_inserted_once():
    prompt = Prompt.parse("{{{a}}} {b}")
    assert prompt.names == ("a", "b")
    assert prompt.fill({"a": "{b}", "b": [1, {"c": None}]}) == '{{b}} [1,{"c":null}]'


# ── what is refused on the driver ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "chats"}, "'task'"),
        ({"url": "ftp://h"}, "'url'"),
        ({"url": "http://ann:hunter2@h/v1"}, "'url'"),
        ({"prompt": "{txt}"}, "Did you mean 'text'"),
        ({"prompt": "no column"}, "names no column"),
        ({"dimensions": "3"}, "'dimensions' is not for task 'chat'"),
        ({"task": "embeddings", "system": "x"}, "'system' is not for task"),
        ({"max-tokens": "0"}, "'max-tokens' is '0'"),
        ({"temperature": "hot"}, "'temperature' is 'hot'"),
        ({"price.input": "1"}, "only one is set"),
        ({"budget": "5"}, "needs 'max-tokens'"),
        ({"usage.path": "/tmp/x"}, "is for 'budget'"),
        ({"tls.ca": "/ca.pem"}, "starts with 'https://'"),
        ({"tokens-per-minute": "1.5"}, "'tokens-per-minute'"),
        ({"connect.timeout": "0"}, "'connect.timeout'"),
    ],
)
def test_wrong_options(models, options, said):
    with pytest.raises(OptionError, match=said.replace(".", r"\.")):
        chat(models, **options)


def test_the_driver_checks_options_beside_a_secret_reference(models):
    with pytest.raises(OptionError, match="'task'"):
        chat(models, task="chats", **{"api-key": "env:NO_SUCH_KEY"})
    assert chat(models, task="env:NO_SUCH_TASK").connector.batch_max_size == 1


def test_a_batch_that_no_service_takes(models):
    with pytest.raises(OptionError, match="2048 at most"):
        embeddings(models, **{"batch-size": "2049"})


@pytest.mark.parametrize(
    ("make", "schema", "said"),
    [
        (chat, "text STRING", "every column"),
        (chat, "text STRING, m MAP<STRING, INT>", "'m': a model cannot answer with MAP"),
        (chat, "text STRING, s STRUCT<b: BINARY>", "'s': a model cannot answer with BINARY"),
        (embeddings, "text STRING, v STRING", "v STRING, which is not one vector"),
        (embeddings, "text STRING, v ARRAY<FLOAT>, w ARRAY<FLOAT>", "not one vector"),
        (embeddings, "text STRING, v ARRAY<INT>", "not one vector"),
        (embeddings, "text STRING", "every column"),
    ],
)
def test_columns_that_no_model_answers_with(models, make, schema, said):
    with pytest.raises(SchemaError, match=said):
        make(models, schema)


def test_a_join_without_a_column_of_the_prompt(models):
    table = chat(models, "a STRING, b INT, label STRING", prompt="{a}{b}")
    with pytest.raises(PlanError, match="made of a, b; the join has no 'b'"):
        table.connector.check(LookupRequest(table="t", key_columns=("a",), columns=("label",)))


# ── failures of the service ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [embeddings, chat])
@pytest.mark.parametrize(
    "failure", [lambda models: models.fail(503, times=2), lambda models: models.err("truncate", 1)], ids=["503", "cut"]
)
def test_temporary_failures_are_retried(models, make, failure):
    failure(models)
    [[text, found, *_]] = rows_of(make(models), "good")
    assert (text, found) == ("good", vector_of("good") if make is embeddings else "good")


@pytest.mark.parametrize("retry_after", [3600, formatdate(4e9, usegmt=True)], ids=["seconds", "a date"])
def test_retry_after_is_honoured_as_seconds_and_as_a_date(models, retry_after):
    models.fail(429, retry_after=retry_after)
    with pytest.raises(LookupFailedError, match="answered 429") as failed:
        rows_of(chat(models), "good")
    assert "requires a delay of" in "".join(failed.value.__cause__.__notes__)
    assert len(models.requests()) == 1


def test_a_service_that_hangs(models):
    models.hang()
    with pytest.raises(LookupTimeoutError):
        rows_of(chat(models, **{"lookup.timeout": "200 ms"}), "good")
    models.release()
    models.wait_open(0)


@pytest.mark.parametrize(
    ("err", "said"),
    [(("quota",), "insufficient_quota"), (("fail", {"status": 400, "retry_after": None}), "answered 400")],
    ids=["quota", "400"],
)
def test_failures_that_no_retry_mends(models, err, said):
    models.err(err[0], **dict(*err[1:]))
    with pytest.raises(LookupFailedError, match=said):
        rows_of(embeddings(models), "good")
    assert len(models.requests()) == 1


def test_a_wrong_key_is_not_retried_and_not_shown(models):
    wrong = "sk-wrong-4711-zyxwvuts"
    with pytest.raises(LookupFailedError, match=r"answered 401 .*Incorrect API key") as failed:
        rows_of(chat(models, **{"api-key": wrong}), "good")
    assert len(models.requests()) == 1
    assert wrong not in str(failed.value)


@pytest.mark.parametrize("key", ["sk-\nb", "sk-é"])
def test_a_key_that_is_no_header(models, key):
    with pytest.raises(OptionError, match="'api-key'") as failed:
        rows_of(chat(models, **{"api-key": key}), "good")
    assert key not in str(failed.value)


def test_a_redirect_to_another_host_does_not_get_the_key(models):
    other = ModelService()
    try:
        other.start()
        models.err("redirect", to=f"{other.url}/v1/chat/completions")
        with pytest.raises(LookupFailedError, match=r"answered 307 .*another host"):
            rows_of(chat(models), "good")
        assert other.requests() == []
    finally:
        other.kill()


def test_the_certificate_of_the_service_is_checked(models, authority):
    answer = {"data": [{"index": 0, "embedding": [1.0]}]}
    server = HttpServer(lambda _: Reply(answer), certificate=authority / "server.pem").start()
    try:
        table = embeddings(models, url=f"https://127.0.0.1:{server.port}/v1")
        with pytest.raises(LookupFailedError, match="certificate verify failed"):
            rows_of(table, "a")
        assert server.requested == []
        assert rows_of(table.with_options({"tls.ca": str(authority / "ca.pem")}), "a") == [("a", [1.0])]
    finally:
        server.kill()


# ── answers that cannot be used ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("err", "said"),
    [
        (("refuse", {}), "is a refusal: I cannot help with that"),
        (("finish", {"reason": "length"}), "cut at the maximum number of tokens"),
        (("finish", {"reason": "content_filter"}), "content filter"),
        (("content", {"text": "Sure! Here it is"}), "is not JSON"),
        (("content", {"text": None}), "has no text"),
        (("content", {"text": "[]"}), r"\$ is \[\], not object"),
        (("content", {"text": '{"label": "x"}'}), r"\$ has no 'score'"),
        (("content", {"text": '{"label": "x", "score": "7"}'}), r'\$.score is "7", not integer or null'),
        (("content", {"text": '{"label": "x", "score": 7.5}'}), r"\$.score is 7.5, not integer"),
        (("content", {"text": '{"label": "x", "score": 1e999999}'}), "'score', which is no INT"),
        (("content", {"text": '{"label": "x", "score": 3000000000}'}), "3000000000 for column 'score'"),
        (("content", {"text": r'{"label": "\ud800", "score": 7}'}), "column 'label', which is no STRING"),
        (("content", {"text": '{"label": null, "score": 7}'}), r"\$.label is null, not string"),
        (("content", {"text": '{"label": "x", "score": 7, "more": 1}'}), "has 'more', which the schema does not"),
        (("error", {}), "has no message: .*overloaded"),
    ],
)
def test_an_invalid_chat_answer_fails_its_row_and_is_not_cached(models, err, said):
    models.err(err[0], 1, **err[1])
    table = chat(models, **LENIENT, **{"lookup.cache": "LRU", "lookup.async.capacity": "1"})
    with LocalJoin(table, TEXT) as join:
        [failed] = join.rows([("good",)])
        assert failed[:3] == (None, None, None)
        assert failed[3]["code"] == "SOURCE_ERROR"
        assert re.search(f"key text = \"good\": the answer of model 'm' .*{said}", failed[3]["message"])
        assert len(models.requests()) == 1
        # The next time it is requested again, and then cached.
        assert join.rows([("good",)]) == join.rows([("good",)]) == [("good", "good", 4, None)]
    assert len(models.requests()) == 2


def test_the_numbers_of_a_vector_are_the_nearest_floats():
    server = HttpServer(lambda _: Reply('{"data": [{"index": 0, "embedding": [16777217.0000000001, 1]}]}')).start()
    try:
        assert rows_of(embeddings(server), "a") == [("a", [16777218.0, 1.0])]
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("err", "said"),
    [
        (("drop", {"number": 1}), "no embedding with the text's index"),
        (("entry", {"number": 1, "index": 0}), "index"),
        (("entry", {"number": 1, "embedding": "AACAPw=="}), "no list of numbers"),
        (("entry", {"number": 1, "embedding": []}), "no list of numbers"),
        (("entry", {"number": 1, "embedding": [True]}), "no list of numbers"),
        (("entry", {"number": 1, "embedding": [1e39]}), "no FLOAT"),
        (("entry", {"number": 1, "embedding": [10**400]}), "no FLOAT"),
    ],
    ids=["dropped", "doubled", "base64", "empty", "boolean", "too large", "huge"],
)
def test_a_text_without_a_vector_is_an_error_of_its_row(models, err, said):
    models.err(err[0], 1, **err[1])
    table = embeddings(models, **LENIENT, **{"lookup.cache": "LRU"})
    with LocalJoin(table, TEXT) as join:
        *_, second, third = join.rows([("a",), ("bb",), ("ccc",)])
        assert re.search(f"key text = \"bb\": the answer of model 'm' .*{said}", second[2]["message"])
        assert third == ("ccc", vector_of("ccc"), None)
        assert join.rows([("bb",)]) == [("bb", vector_of("bb"), None)]


def test_embeddings_in_any_order(models):
    models.err("reverse")
    assert rows_of(embeddings(models), "a", "bb", "ccc") == vectors_of("a", "bb", "ccc")


@pytest.mark.parametrize("index", [None, 7, -1, True, "0"])
def test_an_embedding_of_no_text_fails_the_call(models, index):
    models.err("entry", number=0, index=index)
    with pytest.raises(SourceError, match="for 2 texts"):
        rows_of(embeddings(models), "a", "bb")


def test_a_vector_of_another_length_than_requested(models):
    models.err("entry", number=0, embedding=[1.0])
    with pytest.raises(SourceError, match="1 numbers, not 3"):
        rows_of(embeddings(models, dimensions="3"), "a")


def test_an_empty_text_is_not_sent_with_the_others(models):
    found = rows_of(embeddings(models, **LENIENT), "a", "")
    assert found[0] == ("a", vector_of("a"), None)
    assert "its text is empty" in found[1][2]["message"]
    assert models.bodies()[0]["input"] == ["a"]


@pytest.mark.parametrize("make", [embeddings, chat])
def test_a_huge_answer_is_not_read(models, make):
    models.set_rows({"is it good?": [labelled("x" * 100_000, 1)]})
    size = {"dimensions": "20000"} if make is embeddings else {}
    with pytest.raises(SourceError, match="more than 10,000 bytes"):
        rows_of(make(models, **{"max-bytes": "10000"}, **size), "good")
    assert len(models.requests()) == 1


def test_without_an_entry_for_any_text(models):
    models.err("error")
    with pytest.raises(SourceError, match="has no list 'data'"):
        rows_of(embeddings(models), "a")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.sampled_from(MEMBERS), inner),
    max_leaves=8,
)
PROPER = {
    "data": [{"index": 0, "embedding": [1.0, 2]}, {"index": 1, "embedding": [0.5]}],
    "choices": [{"message": {"content": '{"label": "x", "score": 1}'}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}


def paths_of(document, path=()):
    """Return the path of every value in a document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(found for name, value in inner for found in paths_of(value, (*path, name)))]


@pytest.mark.extended
@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(paths_of(PROPER)[1:]), JSON)
def test_any_response_is_an_answer_or_an_answer_error(path, value):
    document = copy.deepcopy(PROPER)
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = json.dumps(value) if path[-1] == "content" else value
    with suppress(AnswerError):
        assert len(vectors(document, 2, pa.list_(pa.float32()), None)) == 2
    columns = parse_ddl(LABELS.partition(", ")[2])
    with suppress(AnswerError):
        read = columns_of(content_of(document), object_schema(columns), columns, False)
        assert [array.type for array in read.values()] == columns.types
        assert read["label"].null_count == 0
    assert Tokens.reported_in(document) in (None, Tokens(1, 1)) or path[0] == "usage"


# ── tokens, price, budget ────────────────────────────────────────────────────────────────────────────────────


def test_tokens_and_their_price_are_counted(models):
    prices = {"price.input": "2", "price.output": "8"}
    _, metrics = looked_up(chat(models, **prices, **{"lookup.cache": "LRU"}), "good", "bad", "good")
    prompt = tokens_of("is it good?") + tokens_of("is it bad?")
    completion = tokens_of(labelled("good", 4)) + tokens_of(labelled("bad", 3))
    assert metrics.source_counts == {
        "prompt_tokens": prompt, "completion_tokens": completion,
        "price": pytest.approx((prompt * 2 + completion * 8) / 1e6),
    }  # fmt: skip


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": "7"}, {"prompt_tokens": -1}, {"prompt_tokens": 10**400}])
def test_a_response_without_usage_is_counted_as_such(models, usage):
    models.err("usage", **usage)
    assert looked_up(embeddings(models), "a")[1].source_counts == {"requests_without_usage": 1}


@pytest.mark.extended
def test_a_job_stops_before_its_budget_is_overspent(models):
    table = chat(models, budget="600", **{"max-tokens": "40", "lookup.async.capacity": "5", **LENIENT})
    models.set_rows({f"is it {number}?": [labelled("x", 1)] for number in range(100)})
    with LocalJoin(table, TEXT) as join:
        with pytest.raises(BudgetError, match=r"budget of 600 tokens does not cover .* spent") as failed:
            join.rows([(str(number),) for number in range(100)])
        counts = LookupMetrics.of(join.source.counters).source_counts
    spent = counts["prompt_tokens"] + counts["completion_tokens"]
    assert 0 < spent <= 600
    assert len(models.requests()) > 5
    assert "Raise option 'budget'" in str(failed.value)


def test_a_budget_in_a_currency_names_what_is_spent(models):
    table = chat(models, budget="0.001", **{"price.input": "1", "price.output": "9", "max-tokens": "50"})
    assert rows_of(table, "good") == [("good", "good", 4)]
    with pytest.raises(
        BudgetError, match=r"budget of 0\.001 does not cover .* spent 0\.000\d+, .* cost up to 0\.000\d+"
    ):
        [rows_of(table, "good") for _ in range(20)]


def test_the_budget_counts_lost_answers_but_no_refused_requests(models):
    """A lost answer counts with its upper bound."""
    usage = {"budget": "10000", "lookup.max-retries": "0", **LENIENT}
    ledger = ledger_of(table := embeddings(models, **usage))
    for fault, spent in [("fail", 0), ("tear", len("good") + 16)]:
        getattr(models, fault)(times=1)
        assert rows_of(table, "good")[0][2] is not None
        assert ledger._own.spent == spent


def ledger_of(table):
    connector = OpenAIConnector(table.schema, table.connector.settings)

    async def opened():
        await connector.open()
        ledger = connector._ledger
        await connector.close()
        return ledger

    return asyncio.run(opened())


def shared(tmp_path, clock=None, **limits):
    limits = LedgerLimits(path=str(tmp_path / "usage"), **limits)
    return Ledger(limits) if clock is None else Ledger(limits, clock)


def test_processes_share_a_budget_in_a_file(tmp_path):
    one, other = shared(tmp_path, budget=100), shared(tmp_path, budget=100)

    async def spend():
        await one.reserve(Tokens(60), 0)
        one.settle(Tokens(60), 0, Tokens(50))
        await other.reserve(Tokens(50), 0)
        other.settle(Tokens(50), 0, Tokens(50))
        with pytest.raises(BudgetError, match=r"of 100 tokens .*all that use '.*usage' spent 100 tokens, and the"):
            await one.reserve(Tokens(1), 0)

    asyncio.run(spend())


async def wait_for_what_is_given_back(one, other):
    await one.reserve(Tokens(80), 0)
    waiting = asyncio.ensure_future(other.reserve(Tokens(80), 0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    one.settle(Tokens(80), 0, Tokens(20))
    await asyncio.wait_for(waiting, LIMIT)


def test_a_request_waits_for_budget_reserved_by_other_processes(tmp_path):
    asyncio.run(wait_for_what_is_given_back(shared(tmp_path, budget=100), shared(tmp_path, budget=100)))


def test_a_process_that_was_killed_is_not_waited_for_without_end(tmp_path):
    clock = FakeClock(1e9)
    killed, other = shared(tmp_path, clock, budget=100), shared(tmp_path, clock, budget=100)

    async def spend():
        await killed.reserve(Tokens(80), 0)
        clock.tick(61)
        with pytest.raises(BudgetError, match=r"spent 0 tokens, 80 tokens are reserved for requests without an answer"):
            await other.reserve(Tokens(80), 0)
        await other.reserve(Tokens(20), 0)

    asyncio.run(spend())


def test_budgets_in_two_units_and_a_rate_alone_do_not_add_up(tmp_path):
    async def spend():
        rate = shared(tmp_path, per_minute=10**6)
        await rate.reserve(Tokens(5000), 5000)
        rate.settle(Tokens(5000), 5000, Tokens(5000))
        await shared(tmp_path, budget=5, prices=Prices(1, 1)).reserve(Tokens(5000), 5000)
        with pytest.raises(OptionError, match=r"'usage.path': .* counts its budget by price, this one by tokens"):
            await shared(tmp_path, budget=5).reserve(Tokens(1), 1)

    asyncio.run(spend())


def test_a_file_that_records_no_usage(tmp_path):
    path = tmp_path / "usage"
    path.write_text("a thesis")
    with pytest.raises(ConnectorError, match=r"'.*usage' is not a record of usage"):
        asyncio.run(Ledger(LedgerLimits(budget=1, path=str(path))).reserve(Tokens(), 0))
    with pytest.raises(ConnectorError, match=r"'usage.path': .* cannot be opened"):
        asyncio.run(Ledger(LedgerLimits(budget=1, path=str(tmp_path))).reserve(Tokens(), 0))


def test_a_request_waits_for_what_those_in_flight_give_back():
    ledger = Ledger(LedgerLimits(budget=100, prices=Prices(1e6, 0)))
    asyncio.run(wait_for_what_is_given_back(ledger, ledger))
    assert (ledger._own.spent, ledger._own.reserved) == (20, 80)


def test_requests_wait_for_the_tokens_of_a_minute():
    clock = FakeClock(1e9)
    ledger = Ledger(LedgerLimits(per_minute=600), clock)

    async def start():
        assert await ledger.reserve(Tokens(100), 100) == 0
        assert await ledger.reserve(Tokens(100), 100) == 10
        ledger.settle(Tokens(100), 100, Tokens(20, 30))
        assert await ledger.reserve(Tokens(100), 100) == 15
        clock.tick(100)
        assert await ledger.reserve(Tokens(100), 100) == 0

    asyncio.run(start())


def test_a_clock_that_was_set_back_changes_no_wait(tmp_path):
    clock = FakeClock(1e9)
    one, other = shared(tmp_path, clock, per_minute=600), shared(tmp_path, clock, per_minute=600)

    async def start():
        assert await one.reserve(Tokens(100), 100) == 0
        clock.tick(-3600)
        assert await other.reserve(Tokens(100), 100) == 10
        clock.tick(15)
        assert await one.reserve(Tokens(100), 100) == 5

    asyncio.run(start())
    # Without a clock of the test's, the time is that of the file, which is years after the above.
    assert asyncio.run(shared(tmp_path, per_minute=600).reserve(Tokens(100), 100)) == 0
    assert 9 < asyncio.run(shared(tmp_path, per_minute=600).reserve(Tokens(100), 100)) <= 10


def test_a_wait_for_tokens_is_within_the_timeout_and_counted(models):
    table = chat(models, **{"tokens-per-minute": "60", "lookup.timeout": "2 s", **LENIENT})
    with LocalJoin(table, TEXT) as join:
        found = join.rows([("good",), ("bad",)])
        assert [row[3] and row[3]["code"] for row in found].count("LOOKUP_TIMEOUT") == 1
        assert LookupMetrics.of(join.source.counters).source_counts["waited_seconds"] > 2
    assert len(models.requests()) == 1


# ── the kit ──────────────────────────────────────────────────────────────────────────────────────────────────


class TestOpenAI(ConnectorSuite):
    """A chat whose answers are lists of rows, so that it has any table; a request per key takes long for 10,000."""

    connector = "openai"
    test_ten_thousand_keys_in_a_call = None
    unsupported_keys: ClassVar = {"negative zero": "the key columns of a row are as they were requested"}
    unsupported: ClassVar = {
        **dict.fromkeys(("binary", "map"), "no such type in the JSON Schemas that services enforce"),
        **{name: "contains a map" for name in TYPES if "map<" in name},
        **dict.fromkeys(("nan", "infinity"), "JSON has no such number"),
    }

    @pytest.fixture
    def load(self, models):
        return lambda rows, key: stored(models, rows, key)

    @pytest.fixture
    def restart(self, models):
        return models.kill, models.start


def stored(models, rows, key):
    """Let the service answer with a table's rows; return the options."""
    template = " | ".join(f"{{{name}}}" for name in key)
    prompt, answers = Prompt.parse(template), {}
    for row in rows.to_pylist():
        values = {name: canonical(row[name]) for name in key}
        if None not in values.values():
            own = {name: value for name, value in row.items() if name not in key}
            answers.setdefault(prompt.fill(values), []).append(json_text(own))
    models.set_rows(answers)
    return {"url": f"{models.url}/v1", "task": "chat", "model": "m", "prompt": template, "rows": "many", "api-key": KEY}


def canonical(value):
    """Return a key as it is requested, both zeros alike."""
    return value + 0 if isinstance(value, float) else value


def test_the_class_is_registered():
    assert connector_class("openai") is OpenAIConnector


# ── the whole way ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spark
def test_the_example_of_the_guide_is_counted_by_both_channels(spark, models, tmp_path, capsys):
    (tmp_path / "key").write_text(KEY)
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    [code], [shown] = (re.findall(f"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
    for shown_value, used in {
        "https://api.openai.com": models.url,
        "env:OPENAI_API_KEY": f"file:{tmp_path}/key",
    }.items():
        assert shown_value in code
        code = code.replace(shown_value, used)
    question = "What is the mood of this review, in one word, and must somebody act on it?\n\n"
    moods = {"Arrived broken.": ("angry", True), "Great, thanks!": ("happy", False)}
    rows = {question + text: [json.dumps({"mood": mood, "urgent": urgent})] for text, (mood, urgent) in moods.items()}
    models.set_rows(rows)
    names = {}
    exec(compile(code, "models.md", "exec"), names)
    assert capsys.readouterr().out.strip() == shown.strip()
    counts = names["join"].metrics().source_counts
    assert set(counts) == {"prompt_tokens", "completion_tokens", "price"}
    assert counts["price"] == pytest.approx((counts["prompt_tokens"] * 0.15 + counts["completion_tokens"] * 0.6) / 1e6)
    observing = names["moods"].with_options({"lookup.metrics": "observe"})
    observed = LookupJoin(names["reviews"].coalesce(1), observing, on=["review"])
    assert observed.df.count() == 3
    once = sum(map(tokens_of, rows)), sum(tokens_of(row) for [row] in rows.values())
    own = observed.metrics().source_counts
    assert (own["prompt_tokens"], own["completion_tokens"]) == once
    poor = names["moods"].with_options({"budget": "0.000001"})
    with pytest.raises(PythonException, match=r"BudgetError: The budget of 1e-06 does not cover the next request"):
        LookupJoin(names["reviews"], poor, on=["review"]).df.collect()
