"""A model as a lookup table: batches of a measured size, classified outside the event loop."""

from __future__ import annotations

import doctest
import pickle

import pytest
import topics
from topics import Topics, best_batch_size, train

from lookupcache import lookup_join


@pytest.fixture(scope="module")
def trained():
    return train()


@pytest.fixture
def model(trained, tmp_path):
    """The model in a file, and sentences it has not seen, with the modules that they are from."""
    path = tmp_path / "topics.pickle"
    path.write_bytes(pickle.dumps(trained[0]))
    return path, trained[1]


def opened(path):
    function = Topics(path)
    function.open()
    return function


def test_the_model_knows_most_sentences(trained):
    model, unseen = trained
    texts, names = zip(*unseen, strict=True)
    assert model.score(texts, names) > 0.7


@pytest.mark.extended
def test_a_batch_is_cheaper_than_its_keys_one_by_one(model):
    path, unseen = model
    texts = [text for text, _ in unseen][:200]
    size, costs = best_batch_size(opened(path).classify, texts, (1, 16, 128))
    print(f"microseconds a text: { {size: round(cost * 1e6) for size, cost in costs.items()} }, best {size}")
    assert size > 1
    assert costs[1] > 3 * costs[size]


@pytest.mark.parametrize(
    ("costs", "best"),
    [({1: 9, 4: 3, 16: 2, 64: 2}, 16), ({1: 1, 4: 1, 16: 5}, 1), ({1: 9, 4: 2.1, 16: 2}, 4), ({1: 9, 4: 5, 16: 2}, 16)],
)
def test_the_least_size_that_is_nearly_the_best(monkeypatch, costs, best):
    monkeypatch.setattr(topics, "_cost_per_key", lambda ask, keys, size: costs[size])
    assert best_batch_size(list, [], tuple(costs))[0] == best


@pytest.mark.extended
@pytest.mark.spark
def test_every_text_gets_the_topic_that_the_model_gives_it(spark, model):
    path, unseen = model
    texts = [text for text, _ in unseen] * 3
    expected = {text: row[0] for text, row in zip(texts, opened(path).classify(texts), strict=True)}
    left = spark.createDataFrame([(n, text) for n, text in enumerate(texts)], "n INT, said STRING").repartition(2)
    joined = lookup_join(left, topics.topics(path, batch_size=64), "said = m.text", select=["said", "topic", "score"])
    found = [(row.said, row.topic, pytest.approx(row.score)) for row in joined.collect()]
    assert sorted(text for text, _, _ in found) == sorted(texts)
    assert all(row == expected[row[0]] for row in found)


def test_the_example_is_true():
    assert doctest.testmod(topics).failed == 0
