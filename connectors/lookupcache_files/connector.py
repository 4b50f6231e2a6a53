"""The `files` connector: a table of Parquet files or a Delta table, which workers cache in full.

files ─► dataset ─► row groups that may contain matching rows, requested columns ─► types ─► filters ─► Arrow

Write a Spark table with `write_snapshot`, or with ``df.write`` if it never changes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import importlib.util
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from lookupcache.connector import Connector, LookupRequest, hide_address
from lookupcache.errors import ConnectorError, OptionError, SourceError, nearest
from lookupcache.expr import Call, Column, Expr, Literal, columns_of, keep, literal, python_value
from lookupcache.schema import shown_type
from lookupcache.source_options import FamilyOptions, path_from, working_directory
from lookupcache_files.partitions import Instants, folder_columns

_ZONE = "time-zone"
_FORMATS = ("parquet", "delta")
_COMPLETE = "_SUCCESS"
_OWN_FILESYSTEMS = {
    "s3": "S3FileSystem", "gs": "GcsFileSystem", "gcs": "GcsFileSystem", "abfs": "AzureFileSystem",
    "abfss": "AzureFileSystem", "hdfs": "HadoopFileSystem", "viewfs": "HadoopFileSystem",
}  # fmt: skip

_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")


class FilesConnector(Connector):
    """Reads a table from Parquet files or a Delta table; it is for ``'lookup.cache' = 'ALL'``.

    Otherwise each call reads the files that may contain its keys. ``path`` is a file or a folder, which is read with
    all subfolders; folder names like ``country=NL`` are columns, as Spark writes them. Each load lists the files again;
    a link that leads out of a local folder is refused. At least one file must have each requested column, in the
    schema's type or one that is converted without loss. Such are INT to BIGINT, FLOAT or INT to DOUBLE, DECIMAL(4,2) to
    DECIMAL(10,2). Names of columns are not case-sensitive, unless a file has both spellings; a column is null for files
    that lack it.

    Only the requested columns are read, and with Parquet's statistics only the row groups that may contain rows that
    pass the filters. All filters are applied while reading.

    >>> FilesConnector(pa.schema([("id", pa.int64())]), {"path": "s3://shop/customers", "storage.secret_key": "env:S3"})
    FilesConnector({'path': 's3://shop/customers', 'storage.secret_key': '***'})
    """

    options: ClassVar[Mapping[str, str]] = FamilyOptions({
        "path": "A file or folder, as in '/data/customers', 's3://b/customers' or 'abfss://…'.",
        "format": "'parquet', the default, or 'delta'.",
        "snapshots": "true: the path's folders are snapshots; the last by name that holds a file _SUCCESS is read.",
        "version": "delta: the version to read; by default the newest.",
        _ZONE: "Of timestamps without one in folder names and Delta's partitions; by default the session's.",
        "storage.*": "A setting of the file system, as in storage.region; never shown.",
    })  # fmt: skip
    required = ("path",)

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self._check()
        if "://" not in options["path"] and not options["path"].startswith(("env:", "file:")):
            self.settings["path"] = str(path_from(working_directory(), options["path"], "path"))
        self._delta = options.get("format") == "delta"
        if self._delta and importlib.util.find_spec("deltalake") is None:
            raise ConnectorError("Option 'format' = 'delta' needs deltalake.", hint="pip install 'lookupcache[delta]'")

    @property
    def secrets(self) -> Sequence[str]:  # type: ignore[override]
        """Settings of a file system are mostly credentials."""
        return tuple(name for name in self.settings if name.startswith("storage."))

    @property
    def session_options(self) -> Mapping[str, str]:  # type: ignore[override]
        """The time zone, where a column may be a timestamp that is a text."""
        zoned = any(pa.types.is_timestamp(one.type) and one.type.tz is not None for one in self.schema)
        return {_ZONE: "spark.sql.session.timeZone"} if zoned else {}

    def environment(self) -> Mapping[str, Any] | None:
        """Return the values behind references, the folder of a relative path, and settings of the store's client.

        The settings of clients for systems other than local ones and object stores are not known.
        """
        from lookupcache.environment import cloud_settings  # Most workers do without.

        scheme, separator, _ = self.settings["path"].partition("://")
        found = super().environment() or {}
        if not separator:
            return {**found, "path": os.path.realpath(scheme)}
        return {**found, "cloud": cloud_settings()} if scheme in _OBJECT_STORES else None

    def pin(self) -> None:
        """Replace a local path by where its links lead now."""
        if "://" not in self.settings["path"]:
            self.settings = {**self.settings, "path": os.path.realpath(self.settings["path"])}

    def accept(self, filters: Sequence[Expr]) -> Sequence[Expr]:
        """Return all filters: they are applied while reading, with Spark's semantics."""
        return filters

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return the rows that may match a key."""
        names = [name for name in request.key_columns if _has_exact_statistics(self.schema.field(name).type)]
        among = [(name, keys.column(name)) for name in names]
        return pa.Table.from_batches(self._read(request, among), self._answer_schema(request))

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        return self._read(request, [])

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, request: LookupRequest, among: Sequence[tuple[str, pa.Array]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass constants and filters; rows without a value of ``among`` may be left out."""
        conditions = [*self._constants(request), *request.filters]
        read = {column.name for condition in conditions for column in columns_of(condition)}
        schema = pa.schema([field for field in self.schema if field.name in {*request.fields, *read}])
        parts = self._parts(schema)
        self._refuse_missing(request, schema, parts)
        for part in parts:
            for rows in self._part(request, part, schema, conditions, among):
                yield from keep(rows, conditions).select(list(request.fields)).to_batches()

    def _part(
        self,
        request: LookupRequest,
        part: _UniformFiles,
        schema: pa.Schema,
        conditions: Sequence[Expr],
        among: Sequence[tuple[str, pa.Array]],
    ) -> Iterator[pa.Table]:
        """Yield the rows that may match, of files with one schema, in the types of the table's schema."""
        found = {field.name: self._stored_field(request, part, field) for field in schema}
        stored = {name: one for name, one in found.items() if one is not None}
        pruned = _Pruning(
            {name: ds.field(one.name) for name, one in stored.items() if one.type == schema.field(name).type}
        )
        for batch in part.batches(stored, pruned.all(conditions, among)):
            arrays = [self._cast(request, part, batch, field) for field in schema]
            yield pa.Table.from_arrays(arrays, schema=schema)

    def _cast(self, request: LookupRequest, part: _UniformFiles, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """Return a column in its type, null if these files do not have it; raises SourceError."""
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        try:
            return batch.column(field.name).cast(field.type)
        except pa.ArrowException as error:
            raise SourceError(
                f"Table {request.table!r}: {_first_file(part)}, column {field.name!r}: a value is no "
                f"{shown_type(field.type)}: {error}.",
                hint="Correct the type in the table's schema, or write the files again.",
            ) from error

    def _answer_schema(self, request: LookupRequest) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in request.fields])

    def _constants(self, request: LookupRequest) -> list[Expr]:
        fields = [self.schema.field(name) for name in request.constants]
        return [
            Call("=", (Column("right", field.name, field.type), literal(request.constants[field.name], field.type)))
            for field in fields
        ]

    def _refuse_missing(self, request: LookupRequest, schema: pa.Schema, parts: Sequence[_UniformFiles]) -> None:
        names = list(dict.fromkeys(name for part in parts for name in part.data.schema.names))
        for field in schema:
            if field.name.lower() not in {name.lower() for name in names}:
                raise SourceError(
                    f"Table {request.table!r}: {hide_address(self.settings['path'])!r} has no column {field.name!r}.",
                    hint=nearest(field.name, names, what="columns"),
                )

    def _stored_field(self, request: LookupRequest, part: _UniformFiles, field: pa.Field) -> pa.Field | None:
        """Return the field of a column in these files, or None; raises SourceError."""
        alike = [one for one in part.data.schema if one.name.lower() == field.name.lower()]
        found = [one for one in alike if one.name == field.name] or alike
        if not found:
            return None
        location = f"Table {request.table!r}: {_first_file(part)}"
        if len(found) != 1:
            names = " and ".join(repr(one.name) for one in found)
            raise SourceError(
                f"{location} has more than one column {field.name!r}: {names}.",
                hint="Spell the column in the table's schema as the file does.",
            )
        if not _fits(found[0].type, field.type):
            raise SourceError(
                f"{location}, column {field.name!r}: the file has {found[0].type}, which may not fit "
                f"{shown_type(field.type)}.",
                hint="Correct the type in the table's schema.",
            )
        return found[0]

    def _parts(self, schema: pa.Schema) -> list[_UniformFiles]:
        """Return the current files, with the columns of a schema, as datasets, one for each schema of files."""
        if self._delta:
            return [self._delta_table(schema)]
        filesystem, root = self._location()
        path = _newest_snapshot(filesystem, root) if self.settings.get("snapshots") == "true" else root
        files = _files(filesystem, path, root)
        return [_UniformFiles(data) for data in _parquet(filesystem, path, files, schema, self.settings.get(_ZONE))]

    def _delta_table(self, schema: pa.Schema) -> _UniformFiles:
        from deltalake import DeltaTable

        from lookupcache_files.delta import dataset_of, instants_of

        version = self.settings.get("version")
        path, storage = self.settings["path"], self._storage()
        table = DeltaTable(path, int(version) if version else None, storage_options=storage or None)
        if "://" not in path:
            _refuse_links_out(path, [unquote(file.removeprefix("file://")) for file in table.file_uris()])
        instants = instants_of(table, schema.names, self.settings.get(_ZONE))
        return _UniformFiles(dataset_of(table, schema.names), instants)

    def _location(self) -> tuple[fs.FileSystem, str]:
        """Return the file system, and the path on it."""
        path = self.settings["path"]
        scheme, separator, rest = path.partition("://")
        if not separator:
            return fs.LocalFileSystem(), path
        storage = {name: {"true": True, "false": False}.get(value, value) for name, value in self._storage().items()}
        if scheme not in _OWN_FILESYSTEMS:
            return _by_fsspec(path, storage)
        if not storage:
            return fs.FileSystem.from_uri(path)
        return getattr(fs, _OWN_FILESYSTEMS[scheme])(**storage), rest

    def _storage(self) -> dict[str, str]:
        return {k.removeprefix("storage."): v for k, v in self.settings.items() if k.startswith("storage.")}

    # ── options ──────────────────────────────────────────────────────────────────────────────────────────

    def _check(self) -> None:
        settings = self.settings
        if settings["path"].startswith("file://"):
            raise OptionError("Option 'path' starts with 'file://'.", hint="Name local files by their path alone.")
        if settings.get("format", "parquet") not in _FORMATS:
            hint = nearest(settings["format"], _FORMATS, what="formats")
            raise OptionError(f"Option 'format' is {settings['format']!r}.", hint=hint)
        if settings.get("snapshots", "false") not in ("true", "false"):
            raise OptionError(f"Option 'snapshots' is {settings['snapshots']!r}.", hint="It is 'true' or 'false'.")
        version = settings.get("version", "0")
        if not (version.isascii() and version.isdigit()):
            raise OptionError(f"Option 'version' is {version!r}.", hint="It is a whole number.")
        for name, wants in (("version", "delta"), ("snapshots", "parquet")):
            if name in settings and settings.get("format", "parquet") != wants:
                raise OptionError(f"Option {name!r} is for 'format' = {wants!r}.", hint="Leave one out.")


@dataclasses.dataclass(frozen=True)
class _UniformFiles:
    """Files of one schema, and the right instants of partition columns that the dataset reads wrongly."""

    data: ds.Dataset
    instants: Mapping[str, Instants] = dataclasses.field(default_factory=dict)

    def batches(self, stored: Mapping[str, pa.Field], passing: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield columns under new names, of at least those rows that pass a filter."""
        columns = {name: ds.field(one.name) for name, one in stored.items()}
        for batch in self.data.scanner(columns=columns, filter=passing).to_batches():
            for at, one in enumerate(stored.values()):
                if one.name in self.instants:
                    right = self.instants[one.name].replace_in(batch.column(at))
                    batch = batch.set_column(at, batch.schema.names[at], right)
            yield batch


def write_snapshot(df: Any, path: str) -> str:
    """Write a DataFrame as a snapshot for ``'snapshots' = 'true'``; return its folder, new under ``path``.

    Workers that load the table in the meantime read the last complete snapshot. Old snapshots are never removed.

    >>> import tempfile
    >>> from lookupcache import LookupTable, lookup_join
    >>> folder = tempfile.mkdtemp()
    >>> written = write_snapshot(spark.createDataFrame([(1, "Ann"), (2, "Bob")], "id INT, name STRING"), folder)
    >>> options = {"connector": "files", "path": folder, "snapshots": "true", "lookup.cache": "ALL"}
    >>> names = LookupTable("n", "id INT, name STRING", options)
    >>> lookup_join(spark.createDataFrame([(2,)], "who INT"), names, "who = n.id", select=["name"]).collect()
    [Row(name='Bob')]
    """
    folder = f"{path.rstrip('/')}/{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S.%fZ}"
    df.write.mode("errorifexists").parquet(folder)
    return folder


# ── where the files are ──────────────────────────────────────────────────────────────────────────────────────


def _by_fsspec(path: str, storage: Mapping[str, Any]) -> tuple[fs.FileSystem, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConnectorError(
            f"Option 'path': {path.partition('://')[0]!r} needs fsspec.", hint="pip install fsspec"
        ) from error
    filesystem, inner = url_to_fs(path, **storage)
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), inner


def _newest_snapshot(filesystem: fs.FileSystem, path: str) -> str:
    folders = [info for info in filesystem.get_file_info(fs.FileSelector(path)) if info.type == fs.FileType.Directory]
    for folder in sorted(folders, key=lambda info: info.base_name, reverse=True):
        if filesystem.get_file_info(f"{folder.path}/{_COMPLETE}").type == fs.FileType.File:
            return folder.path
    raise FileNotFoundError(f"Option 'path': no folder there holds a file {_COMPLETE}, so no snapshot is complete.")


def _parquet(
    filesystem: fs.FileSystem, path: str, files: Sequence[str], declared: pa.Schema, zone: str | None
) -> list[ds.Dataset]:
    """Return files at or below a path as datasets of one schema each; raises FileNotFoundError without a file.

    Arrow's own union of schemas is case-sensitive, fails if two files have different types, and cannot read folder
    names as all types.
    """
    if not files:
        raise FileNotFoundError("Option 'path': there are no files.")
    # Spark's INT96 timestamps would overflow as nanoseconds.
    file_format = ds.ParquetFileFormat(read_options={"coerce_int96_timestamp_unit": "us"})
    alike: dict[str, tuple[pa.Schema, list[ds.Fragment]]] = {}
    for file in files:
        folders = folder_columns(_below(file, path)[:-1], declared, zone)
        fragment = file_format.make_fragment(file, filesystem, _all(_is(*folder) for folder in folders.items()))
        schema = _with_folders(fragment.physical_schema, [declared.field(name) for name in folders])
        alike.setdefault(str(schema), (schema, []))[1].append(fragment)
    return [ds.FileSystemDataset(found, schema, file_format, filesystem) for schema, found in alike.values()]


def _with_folders(schema: pa.Schema, folders: Sequence[pa.Field]) -> pa.Schema:
    """Return a file's columns with those of its folders, which take precedence over the file's own, as in Spark."""
    names = {field.name.lower() for field in folders}
    own = [field for field in schema if field.name.lower() not in names]
    return pa.schema([*own, *(field.with_nullable(True) for field in folders)])


def _is(name: str, value: pa.Scalar) -> ds.Expression:
    return ds.field(name) == value if value.is_valid else ds.field(name).is_null()


def _all(conditions: Iterable[ds.Expression]) -> ds.Expression:
    # With its type: to find out the type of a value, pyarrow imports pandas.
    return functools.reduce(operator.and_, conditions, ds.scalar(pa.scalar(True, pa.bool_())))


def _first_file(part: _UniformFiles) -> str:
    """Return the name of the first of these files for an error, or a text that says that no file was found."""
    files = getattr(part.data, "files", [])
    return repr(hide_address(files[0])) if files else "the table"


def _files(filesystem: fs.FileSystem, path: str, root: str) -> list[str]:
    """Return the files to read; files and folders whose names start with ``_`` or ``.`` are ignored."""
    info = filesystem.get_file_info(path)
    if info.type != fs.FileType.Directory:
        return [path] if info.type == fs.FileType.File else []
    if isinstance(filesystem, fs.LocalFileSystem):
        return sorted(_local_files(path, root))
    found = [one.path for one in filesystem.get_file_info(fs.FileSelector(path, recursive=True)) if one.is_file]
    return sorted(one for one in found if not any(map(_is_hidden, _below(one, path))))


def _local_files(path: str, root: str) -> Iterator[str]:
    """Yield the files of a local folder; raises SourceError for a link that leads out, or to a folder once more.

    Arrow would follow links that lead to each other forty times, in all orders.
    """
    waiting, seen, real_root = [path], dict[str, str](), os.path.realpath(root)
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(folder)
        _refuse_out(folder, real, real_root)
        if real in seen:
            raise SourceError(
                f"Option 'path': {folder!r} and {seen[real]!r} are one folder, by a link: its rows would come twice.",
                hint="Remove the link, or let its name start with an underscore.",
            )
        seen[real] = folder
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.is_file():
                    if entry.is_symlink():
                        _refuse_out(entry.path, os.path.realpath(entry.path), real_root)
                    yield entry.path


def _refuse_links_out(root: str, files: Iterable[str]) -> None:
    """Raise SourceError for a file that is a link, or in a linked folder, which leads out of the path."""
    real_folder, real_root = functools.cache(os.path.realpath), os.path.realpath(root)
    for file in files:
        folder, name = os.path.split(file)
        # One call for each file, and for each folder: resolving every path would take longer than listing them.
        real = os.path.realpath(file) if os.path.islink(file) else os.path.join(real_folder(folder), name)
        if file != root:
            _refuse_out(file, real, real_root)


def _refuse_out(path: str, real: str, real_root: str) -> None:
    """Raise SourceError for a path that leads out of a folder; ``real`` and ``real_root`` are both without links.

    Otherwise a user with write access to the folder could make workers read any of their files.
    """
    if real != real_root and not real.startswith(os.path.join(real_root, "")):
        raise SourceError(
            f"Option 'path': {path!r} is a link that leads out of the folder.",
            hint="Copy the file into the folder, or name the folder that it is in.",
        )


def _below(file: str, path: str) -> list[str]:
    """Return the names of the folders in between, and of the file."""
    return file.removeprefix(path.rstrip("/")).lstrip("/").split("/")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────


def _fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether the values of a stored type fit the declared one; reading fails if nanoseconds would be lost."""
    if isinstance(stored, pa.BaseExtensionType):
        return _fits(stored.storage_type, declared)
    if pa.types.is_dictionary(stored):
        return _fits(stored.value_type, declared)
    if pa.types.is_null(stored):
        return True
    return any(is_it(declared) and fits(stored, declared) for is_it, fits in _FITTING)


def _integer_fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    width = stored.bit_width + pa.types.is_unsigned_integer(stored) if pa.types.is_integer(stored) else 65
    return width <= declared.bit_width


def _decimal_fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    if pa.types.is_integer(stored):
        return len(str(2**stored.bit_width)) <= declared.precision - declared.scale
    return (
        pa.types.is_decimal(stored)
        and stored.scale <= declared.scale
        and stored.precision - stored.scale <= declared.precision - declared.scale
    )


def _moment_fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    # A timestamp without a zone may be Spark's INT96, which is in UTC.
    return pa.types.is_timestamp(stored) and (stored.tz is None or declared.tz is not None)


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
)  # fmt: skip


def _double_fits(stored: pa.DataType, _: pa.DataType) -> bool:
    short = pa.types.is_signed_integer(stored) and stored.bit_width <= 32
    return short or pa.types.is_float32(stored) or pa.types.is_float64(stored)


def _list_fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    return any(is_it(stored) for is_it in _LISTS) and _fits(stored.value_type, declared.value_type)


def _struct_fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    if not pa.types.is_struct(stored) or [one.name for one in stored] != [one.name for one in declared]:
        return False
    return all(_fits(one.type, other.type) for one, other in zip(stored, declared, strict=True))


def _map_fits(stored: pa.DataType, declared: pa.DataType) -> bool:
    is_map = pa.types.is_map(stored)
    return is_map and _fits(stored.key_type, declared.key_type) and _fits(stored.item_type, declared.item_type)


_FITTING: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]]] = [
    (pa.types.is_integer, _integer_fits),
    (pa.types.is_float64, _double_fits),
    (pa.types.is_float32, lambda stored, _: pa.types.is_float32(stored)),
    (pa.types.is_boolean, lambda stored, _: pa.types.is_boolean(stored)),
    (pa.types.is_string, lambda stored, _: any(is_it(stored) for is_it in _TEXTS)),
    (pa.types.is_binary, lambda stored, _: any(is_it(stored) for is_it in _BYTES)),
    (pa.types.is_date32, lambda stored, _: pa.types.is_date(stored)),
    (pa.types.is_decimal, _decimal_fits),
    (pa.types.is_timestamp, _moment_fits),
    (pa.types.is_list, _list_fits),
    (pa.types.is_struct, _struct_fits),
    (pa.types.is_map, _map_fits),
]


# ── what need not be read ────────────────────────────────────────────────────────────────────────────────────

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<=>": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class _Pruning:
    """Translates filters for the dataset; the result passes at least the rows that pass the filters in Spark.

    ``fields`` are the columns that are stored in the schema's own types.
    """

    def __init__(self, fields: Mapping[str, ds.Expression]) -> None:
        self._fields = fields

    def all(self, conditions: Sequence[Expr], among: Sequence[tuple[str, pa.Array]]) -> ds.Expression | None:
        """Return the conjunction of the conditions that the dataset can check, or None."""
        found = [self._condition(condition) for condition in conditions]
        found += [self._fields[name].isin(values) for name, values in among if name in self._fields]
        known = [one for one in found if one is not None]
        return functools.reduce(operator.and_, known) if known else None

    def _condition(self, expr: Expr) -> Any:
        if not isinstance(expr, Call):
            return None
        if expr.op == "and":
            return self.all(expr.args, [])
        if expr.op == "or":
            either = [self._condition(argument) for argument in expr.args]
            return None if any(one is None for one in either) else functools.reduce(operator.or_, either)
        if expr.op == "is null":
            return self._is_null(expr)
        if expr.op == "not":
            inner = self._is_null(expr.args[0])
            return None if inner is None else ~inner
        return self._comparison(expr)

    def _is_null(self, expr: Expr) -> Any:
        if not isinstance(expr, Call) or expr.op != "is null" or not isinstance(expr.args[0], Column):
            return None
        field = self._fields.get(expr.args[0].name)
        return None if field is None else field.is_null()

    def _comparison(self, expr: Call) -> Any:
        op, args = expr.op, expr.args
        if op in _COMPARISONS and isinstance(args[0], Literal):
            op, args = _FLIPPED.get(op, op), args[::-1]
        if op not in _COMPARISONS or not isinstance(args[0], Column) or not isinstance(args[1], Literal):
            return None
        column, value = args[0], args[1]
        field, same = self._fields.get(column.name), column.type == value.type and value.value is not None
        if field is None or not same or not _has_exact_statistics(column.type):
            return None
        return _COMPARISONS[op](field, pa.scalar(python_value(value), value.type))


def _has_exact_statistics(type_: pa.DataType) -> bool:
    """Return whether Parquet's minima and maxima follow Spark's order; those of floats ignore NaN."""
    families = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_it(type_) for is_it in families)
