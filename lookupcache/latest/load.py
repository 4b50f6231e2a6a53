"""The load phase of a join with latest values: left rows wait until the table is loaded, as with Flink's SNAPSHOT.

Each bucket decides alone, from signals that all buckets get in the same micro-batches, so that all decide the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lookupcache.config.values import parse_time_limit
from lookupcache.errors import OptionError

COMPILE_TIME = "compile_time"


@dataclass(frozen=True)
class LoadPhase:
    """Lets left rows wait until a table of latest values is loaded; then each is joined once.

    The phase ends when the stream's event time (its greatest value, less the delay of its watermark) reaches
    ``completed_time``. It also ends when that has not advanced for ``idle_timeout``. A phase that ended never begins
    again. It ends in a micro-batch, and Spark runs none without rows of the stream or of the left side.

    Args:
        completed_time: An event time, as a datetime or as text such as ``"2026-07-01 00:00:00"``; by default the moment
            when the query was planned first.
        idle_timeout: A duration such as ``"30 s"``; by default, the phase ends by event time only.
        event_time: The column with the event time; by default that of the stream's watermark, else the first column of
            ``order_by`` that is a timestamp. A stream without one is loaded when no row arrives for ``idle_timeout``.

    >>> LoadPhase(idle_timeout="30 s").idle_seconds
    30.0
    """

    completed_time: datetime | str = COMPILE_TIME
    idle_timeout: str | float | None = None
    event_time: str | None = None

    def __post_init__(self) -> None:
        _ = self.idle_seconds
        time = self.completed_time
        if time != COMPILE_TIME and not isinstance(time, datetime) and not _is_time(time):
            raise OptionError(
                f"'completed_time' is {time!r}.",
                hint=f"It is a datetime, text such as '2026-07-01 00:00:00', or {COMPILE_TIME!r}.",
            )

    @property
    def idle_seconds(self) -> float | None:
        """The idle timeout in seconds."""
        if self.idle_timeout is None:
            return None
        try:
            return parse_time_limit(self.idle_timeout)
        except ValueError as error:
            raise OptionError(f"'idle_timeout' is {self.idle_timeout!r}.", hint=f"It is {error}.") from None

    def completed_micros(self, read: Callable[[str], int | None]) -> int | None:
        """Return the event time that ends the phase in microseconds, None for the moment of planning.

        ``read`` returns the microseconds of a text in the session's time zone, None where it is no time.
        """
        time = self.completed_time
        if time == COMPILE_TIME:
            return None
        found = int(time.timestamp() * 1e6) if isinstance(time, datetime) else read(time.strip())
        if found is None:
            raise OptionError(f"'completed_time' is {time!r}.", hint="Write it as '2026-07-01 00:00:00'.")
        return found


def _is_time(text: Any) -> bool:
    try:
        datetime.fromisoformat(str(text).strip())
    except ValueError:
        return False
    return isinstance(text, str)


# ── in the workers ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LoadRule:
    """When a table is loaded; times are in microseconds.

    ``until`` is an event time; where it ``is_planned``, the moment of planning, that of the first run counts. ``left``
    is a hash of the left columns: rows that wait have those of the run that they arrived in.
    """

    until: int
    is_planned: bool
    idle: int | None
    has_event_time: bool
    left: str = ""


@dataclass(frozen=True)
class Loading:
    """A bucket's knowledge of how far the table is loaded, which it stores with its values.

    ``progress`` is the event time, ``advanced`` the micro-batch in which it last advanced, ``loaded`` that in which the
    phase ended.
    """

    until: int
    advanced: int
    left: str
    progress: int | None = None
    loaded: int | None = None

    @classmethod
    def begin(cls, rule: LoadRule, now: int) -> Loading:
        """Return the state of a bucket's first micro-batch."""
        return cls(rule.until, now, rule.left)

    @classmethod
    def of_json(cls, text: bytes) -> Loading:
        """Return the state that `to_json` has written."""
        return cls(**json.loads(text))

    def to_json(self) -> bytes:
        """Return the state as text."""
        return json.dumps(dataclasses.asdict(self)).encode()

    def after(self, rule: LoadRule, signals: Iterable[Signal], now: int) -> Loading:
        """Return the state after a micro-batch, from the signals of the stream's parts."""
        if self.loaded is not None:
            return self
        until = self.until if rule.is_planned else rule.until
        found = dataclasses.replace(self, until=until)
        signals = list(signals)
        events = [one.event for one in signals if one.event is not None]
        if events and (self.progress is None or max(events) > self.progress):
            found = dataclasses.replace(found, progress=max(events), advanced=now)
        elif not rule.has_event_time and any(one.rows for one in signals):
            found = dataclasses.replace(found, advanced=now)
        is_loaded = found.progress is not None and found.progress >= until
        is_idle = rule.idle is not None and now >= found.advanced + rule.idle
        return dataclasses.replace(found, loaded=now) if is_loaded or is_idle else found


@dataclass(frozen=True)
class Signal:
    """The report of a packing task to buckets: the number of its right rows, and their greatest event time."""

    rows: int = 0
    event: int | None = None

    def to_payload(self) -> bytes:
        """Return the signal as a payload."""
        return json.dumps([self.rows, self.event]).encode()

    @classmethod
    def of_payload(cls, payload: bytes) -> Signal:
        """Return the signal that `to_payload` has written."""
        return cls(*json.loads(payload))
