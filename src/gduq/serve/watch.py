"""What an operator sees: a line of log per request, numbers for Prometheus, and an alarm."""

from __future__ import annotations

import hmac
import logging
import math
import re
import secrets
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from gduq._io import to_json
from gduq.serve.service import REASONS, Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Watch", "watched"]

_log = logging.getLogger(__name__)
_ID = re.compile(r"[\w.:/+=-]{1,100}", re.ASCII)  # of a request, if its client gives one
_Labels: TypeAlias = tuple[tuple[str, object], ...]
_BOUNDS = {
    "gduq_request_seconds": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, math.inf),
    "gduq_novelty": (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, math.inf),
    "gduq_trust": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, math.inf),
}


class Watch:
    """Numbers about what is answered, in memory that does not grow, and `Service.monitor`."""

    def __init__(self, service: Service, named: Mapping[str, str]) -> None:
        self.monitor = service.monitor()
        # by name and labels: a number, or those of the buckets of a histogram and their sum
        self._numbers = defaultdict[str, dict[_Labels, list[float]]](dict)
        self.add("gduq_model_info", 1, **named)
        self.add("gduq_passes_total", 0)  # which another thread adds to
        self.answered([], 0)

    def add(self, name: str, amount: float, /, **labels: object) -> None:
        """Add to a number."""
        self._numbers[name].setdefault(tuple(labels.items()), [0])[0] += amount

    def observe(self, name: str, values: Sequence[float], /, **labels: object) -> None:
        """Add values to a histogram."""
        bounds = _BOUNDS[name]
        found = self._numbers[name].setdefault(tuple(labels.items()), [0] * (len(bounds) + 1))
        for value in values:
            found[bisect_left(bounds, value)] += 1
        found[-1] += sum(values)

    def answered(self, rows: Sequence[Mapping[str, object]], rejected: int) -> dict[str, int]:
        """Note an answer; its numbers of rows, of those abstained from, and of graphs rejected."""
        reasons = Counter(str(row["abstain"]) for row in rows if row.get("abstain"))
        for reason in REASONS:
            self.add("gduq_abstained_total", reasons[reason], reason=reason)
        self.add("gduq_rows_total", len(rows))
        self.add("gduq_rejected_total", rejected)
        novelty = _finite(rows, "novelty")
        self.observe("gduq_novelty", novelty)
        self.observe("gduq_trust", _finite(rows, "trust"))
        if self.monitor is not None:
            before = self.monitor.alarm
            self.monitor.update(novelty)
            if self.monitor.alarm > before:
                _log.warning("alarm at row %s: not like the training data", self.monitor.alarm_at)
        return {"rows": len(rows), "abstained": reasons.total(), "rejected": rejected}

    def metrics(self, waiting: int) -> str:
        """All numbers in Prometheus' text format."""
        self._numbers["gduq_waiting"][()] = [waiting]
        if self.monitor is not None:
            self._numbers["gduq_monitor_log_capital"][()] = [self.monitor.log_capital]
            self._numbers["gduq_monitor_alarm"][()] = [int(self.monitor.alarm)]
        lines = list[str]()
        for name, found in self._numbers.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.append(f"# TYPE {name} {'histogram' if name in _BOUNDS else kind}")
            for labels, (*counts, last) in found.items():
                for bound, count in zip(_BOUNDS.get(name, ()), accumulate(counts), strict=True):
                    le = "+Inf" if bound == math.inf else bound
                    lines.append(_sample(f"{name}_bucket", (*labels, ("le", le)), count))
                if counts:
                    lines.append(_sample(f"{name}_count", labels, sum(counts)))
                lines.append(_sample(f"{name}_sum" if counts else name, labels, last))
        return "\n".join([*lines, ""])


def _sample(name: str, labels: _Labels, value: float) -> str:
    """A line of Prometheus' text format."""
    named = ",".join(f"{label}={to_json(str(found), None)}" for label, found in labels)
    return f"{name}{{{named}}} {value}" if named else f"{name} {value}"


def _finite(rows: Sequence[Mapping[str, object]], name: str) -> list[float]:
    """All finite values of a column, or of one each per label or value, ``name_...``."""
    names = [key for key in (rows[0] if rows else ()) if f"{key}_".startswith(f"{name}_")]
    found = (row[key] for row in rows for key in names)
    return [value for value in found if isinstance(value, float) and math.isfinite(value)]


def watched(app: ASGIApp, watch: Watch, routes: Collection[str], keys: Collection[str]) -> ASGIApp:
    """The same with an id and a line of log for each request, counted in ``watch`` by route; if
    there are keys, only requests with one are answered."""
    from starlette.responses import JSONResponse

    why = {"detail": "expected a key: Authorization: Bearer KEY, or X-API-Key: KEY"}
    refusal = JSONResponse(why, 401, {"WWW-Authenticate": "Bearer"})

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        start, status, headers = time.perf_counter(), 499, dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        named = given if _ID.fullmatch(given) else secrets.token_hex(8)
        route = scope["path"] if scope["path"] in routes else "other"
        scope["answered"] = counts = dict[str, int]()

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", named.encode())]
            await send(message)

        may = not keys or route in ("/health", "/ready") or _has_key(headers, keys)
        try:
            await (app if may else refusal)(scope, receive, reply)
        finally:  # without a status the client has gone
            seconds = time.perf_counter() - start
            watch.add("gduq_requests_total", 1, route=route, status=status)
            watch.observe("gduq_request_seconds", [seconds], route=route)
            path = scope["raw_path"].decode("latin-1")  # as it was sent: no control characters
            more = "".join(f" {name}={count}" for name, count in counts.items())
            line = f"{named} {scope['method']} {path[:100]} {status}{more} ms={1000 * seconds:.1f}"
            _log.info(line)

    return respond


def _has_key(headers: Mapping[bytes, bytes], keys: Collection[str]) -> bool:
    """Whether a request names a key; the time it takes does not tell how much is right."""
    kind, _, token = headers.get(b"authorization", b"").partition(b" ")
    given = token.strip() if kind.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    return any(hmac.compare_digest(given, key.encode()) for key in keys)
