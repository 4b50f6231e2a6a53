"""A connector that passes the suite, and for each check of the suite a faulty one that fails it; for test_testing.py.

A shelf is a connector for an Arrow file with a password. Each broken shelf has one fault that real connectors had.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scale import SCALE

from lookupcache import expr
from lookupcache.connector import Connector
from lookupcache.errors import PlanError, SchemaError
from lookupcache.testing import ConnectorSuite
from lookupcache.testing.samples import TYPES, Supported

PASSWORD = "open sesame"
NEVER_SET = threading.Event()


class Shelf(Connector):
    """Looks up rows of an Arrow file, through a dict."""

    options = {"path": "The file.", "password": "Opens it.", "key": "The key columns."}  # noqa: RUF012
    required = ("path",)
    _password: str | None = None

    def __init__(self, schema, options):
        super().__init__(schema, options)
        for field in schema:
            if field.name == "odd_one" and pa.types.is_map(field.type):
                raise SchemaError(f"Column {field.name!r}: a shelf cannot store maps.")

    def open(self):
        self.indexes = {}
        self._password = self.settings["password"]
        if self._password != PASSWORD:
            raise PermissionError("The password is wrong.")

    def close(self):
        self._password = None

    def lookup(self, request, keys):
        self.ready()
        rows = self.rows()
        index = self.index(rows, request.key_columns)
        found = [number for key in tuples(keys) for number in index.get(self.comparable_key(key), ())]
        return self.answer(request, self.apply_filters(request, rows.take(pa.array(found, pa.int64()))))

    def scan(self, request):
        yield from self.answer(request, self.apply_filters(request, self.rows())).to_batches(max_chunksize=5_000)

    def infer_schema(self):
        with pa.memory_map(self.settings["path"]) as file:
            return pa.ipc.open_file(file).schema

    def index(self, rows, names):
        if names not in self.indexes:
            index = defaultdict(list)
            for number, key in enumerate(tuples(rows, names)):
                index[self.comparable_key(key)].append(number)
            self.indexes[names] = index
        return self.indexes[names]

    def ready(self):
        if self._password is None:
            raise ValueError("The connector is not open.")

    def rows(self):
        return pa.ipc.open_file(pa.memory_map(self.settings["path"])).read_all().select(self.schema.names)

    def apply_filters(self, request, rows):
        return expr.keep(rows, request.filters)

    def answer(self, request, rows):
        return rows.select(list(request.fields))

    def comparable_key(self, key):
        return tuple("NaN" if value != value else value for value in key)


class ShelfSuite(ConnectorSuite):
    """The suite of shelves: creates the file; kills the source by renaming the file."""

    filter_examples = 30
    can_scan = True
    unsupported: ClassVar[dict[str, str]] = {"map": "A shelf cannot store maps."}
    paths: ClassVar[list[Path]] = []

    @pytest.fixture
    def load(self, tmp_path):
        def load(rows, key):
            path = tmp_path / "rows.arrow"
            with pa.ipc.new_file(path, rows.schema) as file:
                file.write_table(rows)
            return {"path": str(path), "password": PASSWORD, "key": ",".join(key)}

        return load

    @pytest.fixture
    def restart(self, tmp_path):
        path = tmp_path / "rows.arrow"
        return lambda: path.rename(f"{path}.gone"), lambda: Path(f"{path}.gone").rename(path)


class TestShelf(ShelfSuite):
    connector = f"{__name__}:Shelf"


class AsyncShelf(Shelf):
    """Implements only `lookup_async`."""

    lookup = Connector.lookup

    async def open(self):
        await asyncio.sleep(0)
        Shelf.open(self)

    async def close(self):
        Shelf.close(self)

    async def lookup_async(self, request, keys):
        await asyncio.sleep(0)
        return Shelf.lookup(self, request, keys)


class TestAsyncShelf(ShelfSuite):
    connector = f"{__name__}:AsyncShelf"


class FilteringShelf(Shelf):
    """Applies all filters, and cannot scan."""

    scan = Connector.scan

    def accept(self, filters):
        return filters


class TestFilteringShelf(ShelfSuite):
    connector = f"{__name__}:FilteringShelf"
    pushes_filters, can_scan = True, False


# ── broken shelves ───────────────────────────────────────────────────────────────────────────────────────────

FAULTS: dict[str, tuple[type[ConnectorSuite], str]] = {}
"""By name: the suite of each faulty connector, and the check that it must fail."""


class FewTypes(Supported):
    """Supports a few types only, to shorten the tests of the many faulty connectors."""

    def types(self, names=TYPES):
        return [name for name in super().types(names) if name in ("bigint", "string", "float", "array<string>")]


class BrokenShelfSuite(ShelfSuite):
    """Base of the suites of faulty connectors."""

    patience = 0.5
    supported = property(lambda self: FewTypes(self.unsupported))
    supported_keys = property(lambda self: FewTypes({**self.unsupported, **self.unsupported_keys}))


def left_out(check, number):
    """Return the checks that this faulty connector does not run: three quarters of those that it must pass.

    Each check is passed by a quarter of them; a nightly run, in which `LOOKUPCACHE_SCALE` is larger, leaves out none.
    """
    if SCALE > 1:
        return []
    checks = sorted(name for name in dir(ConnectorSuite) if name.startswith("test_"))
    return [name for place, name in enumerate(checks) if name != check and (place + number) % 4]


def fails(check, **claims):
    """Register a faulty connector under the check that detects its fault."""

    def register(kind):
        names = {"connector": f"{__name__}:{kind.__name__}", **claims}
        suite = type(f"Test{kind.__name__}", (BrokenShelfSuite,), names)
        # Not earlier: a suite that is made decides itself which checks apply.
        for name in left_out(check, len(FAULTS)):
            setattr(suite, name, None)
        suite.__module__ = __name__
        globals()[suite.__name__] = suite
        FAULTS[suite.__name__] = (suite, check)
        return kind

    return register


@fails("test_values_there_and_back")
class ForgetsNullsInArrays(Shelf):
    def answer(self, request, rows):
        for number, field in enumerate(rows.schema):
            if pa.types.is_list(field.type):
                lists = [value and [item for item in value if item is not None] for value in rows[number].to_pylist()]
                rows = rows.set_column(number, field, pa.array(lists, field.type))
        return super().answer(request, rows)


@fails("test_a_type_that_it_cannot_hold_is_refused")
class TakesColumnsThatAreNotThere(Shelf):
    def __init__(self, schema, options):
        Connector.__init__(self, schema, options)

    def rows(self):
        rows = pa.ipc.open_file(pa.memory_map(self.settings["path"])).read_all()
        for field in self.schema:
            if field.name == "odd_one":
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(self.schema.names)


@fails("test_keys_of_each_type")
class DistinguishesZeros(Shelf):
    def comparable_key(self, key):
        return tuple(map(repr, key))


@fails("test_one_key")
class MissesASingleKey(Shelf):
    def lookup(self, request, keys):
        return super().lookup(request, keys.slice(1) if keys.to_pylist() == [{"id": 2}] else keys)


@fails("test_a_composite_key")
class ConcatenatesKeys(Shelf):
    def comparable_key(self, key):
        return "".join(map(str, key)) if len(key) > 1 else super().comparable_key(key)

    def lookup(self, request, keys):
        answer = super().lookup(request, keys)
        if len(request.key_columns) == 1:
            return answer
        last = {self.comparable_key(key): number for number, key in enumerate(tuples(answer, request.key_columns))}
        return answer.take(pa.array(last.values(), pa.int64()))


@fails("test_ten_thousand_keys_in_a_call")
class LimitsKeys(Shelf):
    def lookup(self, request, keys):
        return super().lookup(request, keys.slice(0, 1_000))


@fails("test_no_rows")
class FailsWithoutRows(Shelf):
    def rows(self):
        rows = super().rows()
        return rows if rows.num_rows else rows.select([])


@fails("test_missing_keys")
class InventsRows(Shelf):
    def lookup(self, request, keys):
        found = super().lookup(request, keys)
        if found.num_rows or keys.num_rows > 1 or not self.rows().num_rows or request.constants:
            return found
        columns = [keys.column(name) if name in keys.schema.names else pa.nulls(1) for name in request.fields]
        return pa.table(columns, names=list(request.fields))


@fails("test_many_rows_of_a_key")
class LimitsAKey(Shelf):
    def lookup(self, request, keys):
        if keys.num_rows > 100:
            return super().lookup(request, keys)
        parts = [super(LimitsAKey, self).lookup(request, keys.slice(n, 1)) for n in range(keys.num_rows)]
        return pa.concat_tables([part.slice(0, 1_000) for part in parts])


@fails("test_duplicates_are_kept")
class SelectsDistinct(Shelf):
    def answer(self, request, rows):
        first = {row: number for number, row in enumerate(map(repr, rows.select(list(request.fields)).to_pylist()))}
        return super().answer(request, rows.take(pa.array(first.values(), pa.int64())))


@fails("test_hostile_texts")
class FillsTemplates(Shelf):
    def lookup(self, request, keys):
        columns = [
            pa.array([text.replace("{id}", "1") for text in column.to_pylist()])
            if pa.types.is_string(column.type) else column
            for column in keys.columns
        ]  # fmt: skip
        return super().lookup(request, pa.RecordBatch.from_arrays(columns, names=keys.schema.names))


@fails("test_odd_column_names")
class DoesNotQuote(Shelf):
    def answer(self, request, rows):
        return rows.select([name for name in request.fields if '"' not in name])


@fails("test_constants")
class ComparesBits(Shelf):
    def apply_filters(self, request, rows):
        for name, value in request.constants.items():
            same = pc.equal(rows.column(name), pa.scalar(value, rows.schema.field(name).type))
            rows = rows.filter(same)
        return super().apply_filters(request, rows)


@fails("test_a_constant_part_of_the_key")
class RequiresTheFullKey(Shelf):
    def lookup(self, request, keys):
        if missing := set(self.settings["key"].split(",")) - set(request.key_columns):
            raise KeyError(missing)
        return super().lookup(request, keys)


@fails("test_a_join_by_its_key_can_be_planned")
class ConnectsToPlan(Shelf):
    def check(self, request):
        self.ready()


@fails("test_a_join_by_its_key_can_be_planned")
class RefusesPartOfItsKey(Shelf):
    def may_be_key(self, column):
        return column == self.settings["key"].split(",")[0]


@fails("test_a_join_by_its_key_can_be_planned")
class RefusesAnyJoin(Shelf):
    def check(self, request):
        raise PlanError("A shelf is not for joins.")


@fails("test_an_inferred_schema_is_that_of_the_rows")
class InfersPartOfTheColumns(Shelf):
    def infer_schema(self):
        return pa.schema([super().infer_schema().field(0)])


@fails("test_an_inferred_schema_is_that_of_the_rows")
class InfersOtherTypes(Shelf):
    def infer_schema(self):
        return pa.schema(
            [(field.name, pa.binary()) if field.name == "name" else field for field in super().infer_schema()]
        )


@fails("test_an_inferred_schema_is_that_of_the_rows")
class StaysConnectedWhenInferring(Shelf):
    left: ClassVar[list[pa.NativeFile]] = []

    def infer_schema(self):
        self.left.append(pa.OSFile(self.settings["path"]))
        return super().infer_schema()


@fails("test_a_key_and_another_column")
class AnswersAKeyTwice(Shelf):
    def lookup(self, request, keys):
        self.ready()
        own = [name for name in self.settings["key"].split(",") if name in request.key_columns]
        rows, found = self.rows(), []
        for key in tuples(keys.select(own or request.key_columns)):
            found += self.index(rows, tuple(own) or request.key_columns).get(self.comparable_key(key), ())
        return self.answer(request, self.apply_filters(request, rows.take(pa.array(found, pa.int64()))))


@fails("test_filters", pushes_filters=True, can_scan=False)
class TreatsNullAsTrue(FilteringShelf):
    def apply_filters(self, request, rows):
        for conjunct in request.filters:
            mask = expr.evaluate(conjunct, lambda column: rows.column(column.name))  # noqa: B023
            rows = rows.filter(mask.fill_null(True))
        return rows


@fails("test_filters", pushes_filters=True)
class AcceptsNothing(Shelf):
    pass


@fails("test_filters")
class AcceptsWithoutClaim(FilteringShelf):
    scan = Shelf.scan


@fails("test_filters", pushes_filters=True)
class AcceptsOthers(FilteringShelf):
    scan = Shelf.scan

    def accept(self, filters):
        return [expr.Call("not", (one,)) for one in filters]


@fails("test_only_wanted_columns_are_answered")
class AnswersAllColumns(Shelf):
    def answer(self, request, rows):
        return rows


@fails("test_sync_and_async_agree")
class ForgetsNullsWhenAsync(Shelf):
    async def lookup_async(self, request, keys):
        found = self.lookup(request, keys)
        return found.filter(found.column("name").is_valid()) if "name" in found.column_names else found


@fails("test_many_calls_at_a_time")
class SharesItsKeys(Shelf):
    thread_safe = True

    def lookup(self, request, keys):
        self.keys = keys
        NEVER_SET.wait(0.005)
        return super().lookup(request, self.keys)


@fails("test_the_whole_table")
class ScansOneBatch(Shelf):
    def scan(self, request):
        yield next(super().scan(request))


@fails("test_it_says_that_it_cannot_scan", can_scan=False)
class ScansWithoutClaim(Shelf):
    pass


@fails("test_an_unknown_option_is_refused")
class TakesAnyOption(Shelf):
    options = None


@fails("test_a_missing_option_is_refused")
class RequiresAnUndeclaredOption(Shelf):
    required = ()

    def __init__(self, schema, options):
        super().__init__(schema, options)
        self.path = options["path"]


@fails("test_it_is_pickled_before_it_is_opened")
class ConnectsTooEarly(Shelf):
    def __init__(self, schema, options):
        super().__init__(schema, options)
        self.lock = threading.Lock()

    def close(self):
        self.lock = None
        super().close()


@fails("test_it_is_pickled_after_it_was_closed")
class KeepsItsClient(Shelf):
    def open(self):
        self.lock = threading.Lock()
        super().open()


@fails("test_it_opens_again_after_it_was_closed")
class OpensOnce(Shelf):
    thread_safe = True
    closed = False

    def close(self):
        self.closed = True
        super().close()

    def ready(self):
        if self.closed:
            raise ValueError("The connector is closed.")
        super().ready()

    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "closed"}


@fails("test_nothing_is_left_when_it_is_closed")
class LeavesAThread(Shelf):
    def open(self):
        threading.Thread(target=NEVER_SET.wait, name="shelf", daemon=True).start()
        super().open()


@fails("test_nothing_is_left_when_it_is_closed")
class LeavesAFile(Shelf):
    left: ClassVar[list[object]] = []

    def open(self):
        self.left.append(Path(self.settings["path"]).open("rb"))  # noqa: SIM115
        super().open()


@fails("test_nothing_is_left_when_it_is_closed")
class LeavesATask(AsyncShelf):
    left: ClassVar[list[object]] = []

    async def open(self):
        self.left.append(asyncio.create_task(asyncio.sleep(3_600)))
        await super().open()


@fails("test_a_source_that_dies_and_comes_back")
class ReturnsNothingWhenDown(Shelf):
    def index(self, rows, names):
        self.indexes.clear()
        return super().index(rows, names)

    def rows(self):
        try:
            return super().rows()
        except FileNotFoundError:
            return self.schema.empty_table()


@fails("test_a_source_that_dies_and_comes_back")
class ReturnsNothingForSeveralKeysWhenDown(Shelf):
    def lookup(self, request, keys):
        try:
            return super().lookup(request, keys)
        except FileNotFoundError:
            if len(keys) == 1:
                raise
            return self.answer(request, self.schema.empty_table())


@fails("test_a_source_that_dies_and_comes_back")
class ScansNothingWhenDown(Shelf):
    def scan(self, request):
        with suppress(FileNotFoundError):
            yield from super().scan(request)


@fails("test_a_source_that_dies_and_comes_back")
class ReturnsNothingWhenDownAndAsync(Shelf):
    async def lookup_async(self, request, keys):
        try:
            return Shelf.lookup(self, request, keys)
        except FileNotFoundError:
            return self.answer(request, self.schema.empty_table())


@fails("test_a_source_that_dies_and_comes_back")
class NeverReconnects(Shelf):
    broken = False

    def rows(self):
        try:
            self.broken or super().rows()
        except FileNotFoundError:
            self.broken = True
        if self.broken:
            raise ConnectionError("The connection is broken.")
        return super().rows()


@fails("test_secrets_are_not_shown")
class LogsItsPassword(Shelf):
    def open(self):
        logging.getLogger("shelf").info("Opening with %s.", self.settings["password"])
        super().open()


@fails("test_secrets_are_not_shown")
class PrintsItsPassword(Shelf):
    def open(self):
        print(self.settings["password"])
        super().open()


@fails("test_secrets_are_not_shown")
class ShowsItsPassword(Shelf):
    def __repr__(self):
        return f"ShowsItsPassword({self._given or self.settings})"


@fails("test_secrets_are_not_shown")
class ShowsItsPasswordInAnError(Shelf):
    def __init__(self, schema, options):
        super().__init__(schema, options)
        if options["password"].startswith("hunter"):
            raise SchemaError(f"{options['password']!r} is not a valid password.")


@fails("test_secrets_by_reference")
class ReadsReferencesTooEarly(Shelf):
    def __init__(self, schema, options):
        super().__init__(schema, options)
        self.password = options["password"]

    def open(self):
        self.settings = {**self.settings, "password": self.password}
        super().open()


@fails("test_secrets_by_reference")
class RefusesReferences(Shelf):
    def __init__(self, schema, options):
        super().__init__(schema, options)
        if ":" in options.get("password", ""):
            raise SchemaError("A password contains no colon.")


@fails("test_secrets_by_reference")
class ShowsItsResolvedPassword(Shelf):
    def __repr__(self):
        return f"ShowsItsResolvedPassword({self._password})"


def tuples(rows, names=None):
    """Return the rows of some columns as tuples."""
    return list(zip(*(rows.column(name).to_pylist() for name in names or rows.schema.names), strict=True))
