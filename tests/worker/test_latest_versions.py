"""The greatest version of each left row against a window written in pandas, with the extreme values of each type."""

import datetime as dt
import random
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lookupcache.worker.versions import greatest_of_each

MOMENTS = [dt.datetime.min, dt.datetime.max, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(1970, 1, 1)]
VALUES = {
    **{type_: [-2 ** (type_.bit_width - 1), 2 ** (type_.bit_width - 1) - 1, -1, 0]
       for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.decimal128(38, 2): [Decimal(text) for text in ("-" + "9" * 36 + ".99", "9" * 36 + ".99", "-0.00", "0.00")],
    pa.date32(): [moment.date() for moment in MOMENTS],
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "UTC"): [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("type_", VALUES, ids=str)
def test_the_greatest_versions_are_those_of_a_window(type_, seed):
    draw = random.Random(f"{type_}{seed}")
    owner = sorted(draw.choices(range(6), k=draw.choice([1, 2, 20])))
    versions = draw.choices(VALUES[type_], k=len(owner))
    places = [sorted(set(VALUES[type_])).index(version) for version in versions]
    window = pd.Series(places).groupby(owner).rank(method="min", ascending=False) == 1
    assert greatest_of_each(np.array(owner), pa.array(versions, type_)).tolist() == window.tolist()
