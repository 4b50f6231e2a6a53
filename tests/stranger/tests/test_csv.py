"""The csv connector passes what every connector should."""

import pytest
from lookupcache.testing import ConnectorSuite
from pyarrow import csv


class TestCsv(ConnectorSuite):
    connector = "csv"
    can_scan = True
    unsupported = dict.fromkeys(["array", "struct", "map", "binary"], "A CSV file holds text.")

    @pytest.fixture
    def load(self, tmp_path):
        def load(rows, key):
            csv.write_csv(rows, tmp_path / "rows.csv")
            return {"path": str(tmp_path / "rows.csv")}

        return load
