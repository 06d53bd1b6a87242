"""The answer to `Client.sql`: rows in Arrow format, for pandas, polars and other libraries that read Arrow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from querator.errors import QueratorError

if TYPE_CHECKING:
    import pyarrow as pa


class Rows:
    """The rows of a query. `arrow` is a `pyarrow.Table`. Libraries that read Arrow streams accept the object itself."""

    def __init__(self, stream: bytes) -> None:
        import pyarrow as pa

        with pa.ipc.open_stream(stream) as reader:
            self.arrow: pa.Table = reader.read_all()

    @property
    def columns(self) -> list[str]:
        return list(self.arrow.column_names)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def to_pylist(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.arrow.to_pylist()
        return rows

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`."""
        _library("pandas")
        return self.arrow.to_pandas()

    def to_polars(self) -> Any:
        """A `polars.DataFrame`."""
        return _library("polars").from_arrow(self.arrow)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.arrow.__arrow_c_stream__(requested_schema)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise QueratorError(f"{name} is not installed", hint=f"pip install {name}") from None
