"""The `csv` connector: rows from a CSV file, which is read when it is opened."""

import pyarrow as pa
import pyarrow.compute as pc
from lookupcache import Connector, SchemaError
from pyarrow import csv

DIALECT = csv.ParseOptions(newlines_in_values=True)


class CsvConnector(Connector):
    """Looks rows up in a CSV file with a header; an empty field is null, a quoted one is not."""

    options = {"path": "The file, as in '/data/customers.csv'."}
    required = ("path",)

    def __init__(self, schema, options):
        super().__init__(schema, options)
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise SchemaError(f"Column {field.name!r}: a CSV file holds no {field.type}.")

    def open(self):
        values = csv.ConvertOptions(
            column_types=self.schema, include_columns=self.schema.names, null_values=[""], strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )  # fmt: skip
        self.rows = csv.read_csv(self.settings["path"], parse_options=DIALECT, convert_options=values)

    def close(self):
        self.rows = None

    def lookup(self, request, keys):
        found = self.rows
        for name in keys.schema.names:
            if not pa.types.is_floating(keys.schema.field(name).type):  # to Arrow, 0.0 and -0.0 are two keys
                found = found.filter(pc.is_in(found[name], value_set=keys[name]))
        return found.select(list(request.fields))

    def scan(self, request):
        return iter(self.rows.select(list(request.fields)).to_batches())
