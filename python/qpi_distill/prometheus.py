"""What the flight recorder knows, for Prometheus: text to serve, to write to a file, or to hand to a server you have.

The training loop calls `Exporter.update` when it likes, which drains the recorder without stalling the stream. Whoever
scrapes gets the text as of the last update and never touches the device. Only the standard library is needed.
"""

from __future__ import annotations

import http.server
import math
import operator
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import _isv
from ._log import logger
from .isv import code_name
from .recorder import MEASURES, Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Any

__all__ = ["CONTENT_TYPE", "Exporter", "Server"]

#: The type of the text, for an HTTP header.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SLOTS = {slot.name: slot for slot in _isv.SLOTS}
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_NAMESPACE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OWN_LABELS = frozenset(("of", "law", "reason", "fault", "le", "quantile"))
_GAUGES = tuple(n for n, kind, _ in _isv.FLIGHT_FIELDS if kind == "f32" or n.endswith("_last"))
_COUNTS = {"commits": "commits_total", "observations": "observations_total"}
_SUMS = {"rows_last": "rows_total", "skipped_last": "skipped_rows_total", "clipped_last": "clipped_rows_total"}
_SUM_MEANINGS = {
    "rows_last": "rows in the statistics of the commits that were drained",
    "skipped_last": "rows left out whole, of the commits that were drained",
    "clipped_last": "rows whose KL was over kl_row_max, of the commits that were drained",
}
_OF = {"reason": "lam", "tau_reason": "tau", "lam_law": "lam", "tau_law": "tau"}
_TIMEOUT_S = 10


class _Family(NamedTuple):
    """A metric: its name, type and help, and its samples by their own labels."""

    name: str
    kind: str
    help: str
    samples: list[tuple[dict[str, str], float]]


class Exporter:
    """Metrics of a flight recorder in the text exposition format of Prometheus.

    Gauges hold the last commit (`lam`, `tau`, `kl_ema`, the measures that were taken, `law`, `fault`), counters what
    came together: commits, rows, skipped and clipped rows, lost records, and how often each reason was given.

    Parameters
    ----------
    recorder : Recorder
        What to drain. With ``keep=False`` it holds no records itself.
    labels : mapping of str to str, optional
        Labels of every sample, such as ``{"run": "7", "rank": "0"}``.
    namespace : str
        What every name begins with. Default: "qpi_distill".

    Raises
    ------
    TypeError
        `recorder` is no Recorder, or a label's value no text.
    ValueError
        A label or a namespace that Prometheus does not take, or a label that the exporter uses itself.

    Examples
    --------
    >>> from qpi_distill import ISV, Recorder
    >>> isv = ISV(device="cpu")
    >>> exporter = Exporter(Recorder(isv, keep=False), labels={"run": "7"})
    >>> isv.commit()
    >>> exporter.update()
    1
    >>> [line for line in exporter.render().splitlines() if line.startswith("qpi_distill_commits")]
    ['qpi_distill_commits_total{run="7"} 1']
    """

    def __init__(
        self, recorder: Recorder, *, labels: Mapping[str, str] | None = None, namespace: str = "qpi_distill"
    ) -> None:
        if not isinstance(recorder, Recorder):
            raise TypeError(f"recorder: {type(recorder).__name__} is not a qpi.Recorder")
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"namespace: {namespace!r} is not letters, digits and underscores, beginning with none")
        self._labels = dict(labels or {})
        for name, value in self._labels.items():
            if not isinstance(name, str) or not _LABEL.fullmatch(name) or name in _OWN_LABELS:
                taken = ", ".join(sorted(_OWN_LABELS))
                raise ValueError(f"labels: {name!r} is not a label's name, or one of {taken}, which are taken")
            if not isinstance(value, str):
                raise TypeError(f"labels: {name}={value!r} is not a str")
        self._recorder = recorder
        self._namespace = namespace
        self._lock = threading.Lock()
        self._last: Any = None
        self._sums: Counter[str] = Counter()
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._lost = 0
        self._updated = 0.0

    def update(self, records: Any = None, stream: Any = None) -> int:
        """Take in what was recorded since the last time. For the thread that trains, as often as it likes.

        Parameters
        ----------
        records : structured array, optional
            What `Recorder.drain` returned, if the caller has drained. Default: drain now.
        stream : int or stream object, optional
            As for `Recorder.drain`.

        Returns
        -------
        int
            How many records were taken in.

        Raises
        ------
        ValueError
            The recorder is closed.
        CaptureError
            The stream is being captured into a graph.
        """
        new = self._recorder.drain(stream) if records is None else records
        with self._lock:
            self._lost = self._recorder.lost
            self._updated = time.time()
            if len(new):
                self._last = new[-1].copy()
                for name in _SUMS:
                    self._sums[name] += int(new[name].sum())
                for slot in ("reason", "tau_reason"):
                    for code, count in Counter(new[slot].tolist()).items():
                        self._reasons[_OF[slot], code_name(slot, code)] += count
        return len(new)

    def render(self) -> str:
        """Return the text as of the last update. For any thread."""
        with self._lock:
            families = list(self._families())
        lines = []
        for family in families:
            name = f"{self._namespace}_{family.name}"
            lines.append(f"# HELP {name} {_escaped(family.help)}")
            lines.append(f"# TYPE {name} {family.kind}")
            for own, value in family.samples:
                labels = ",".join(f'{key}="{_escaped(text, quote=True)}"' for key, text in (self._labels | own).items())
                lines.append(f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}")
        return "".join(line + "\n" for line in lines)

    def write(self, path: str | Path) -> None:
        """Write the text to a file at once, for the textfile collector of the node exporter.

        Parameters
        ----------
        path : str or Path
            The file; the collector wants it to end in ``.prom``. It is replaced as a whole.
        """
        path = Path(path)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.write_text(self.render(), encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)

    def serve(self, port: int = 9464, address: str = "127.0.0.1") -> Server:
        """Serve the text at ``/metrics`` from threads of its own, until the server is closed.

        Parameters
        ----------
        port : int
            Default: 9464. 0: one that is free; `Server.port` says which.
        address : str
            Where to listen. Default: this machine alone. There is neither encryption nor a password: open it to a
            network only where everyone may read.

        Raises
        ------
        ValueError
            A port that is not from 0 to 65535.
        OSError
            The address or the port cannot be had.
        """
        return Server(self, port, address)

    def _families(self) -> Iterator[_Family]:
        yield _Family("lost_records_total", "counter", "commits lost before they were drained", [({}, self._lost)])
        if self._updated:
            help_ = "when the recorder was last drained, in seconds since 1970"
            yield _Family("last_update_timestamp_seconds", "gauge", help_, [({}, self._updated)])
        last = self._last
        if last is None:
            return
        for field, name in _COUNTS.items():
            yield _Family(name, "counter", _SLOTS[field].meaning, [({}, int(last[field]))])
        for field, name in _SUMS.items():
            yield _Family(name, "counter", _SUM_MEANINGS[field], [({}, self._sums[field])])
        for field in _GAUGES:
            value = last[field].item()
            if field not in MEASURES or value >= 0:
                slot = _SLOTS[field]
                unit = "" if slot.unit == "1" else f" ({slot.unit})"
                yield _Family(field, "gauge", slot.meaning + unit, [({}, value)])
        laws = [({"of": _OF[slot], "law": code_name(slot, int(last[slot]))}, 1) for slot in ("lam_law", "tau_law")]
        yield _Family("law", "gauge", "1 for the control laws in use", laws)
        counts = [({"of": of, "reason": reason}, n) for (of, reason), n in sorted(self._reasons.items())]
        yield _Family("reasons_total", "counter", "commits by what they did with lam or tau, and why", counts)
        bits = int(last["faults"])
        faults = [({"fault": name}, int(bool(bits & bit))) for name, bit in _isv.FAULTS.items()]
        yield _Family("fault", "gauge", "1 for each kind of device value that made no sense", faults)


class Server:
    """The HTTP endpoint of an `Exporter`; made by `Exporter.serve`. Also a context manager that closes it.

    Attributes
    ----------
    port : int
        Where it listens.
    """

    def __init__(self, exporter: Exporter, port: int, address: str) -> None:
        try:
            port = operator.index(port)
        except TypeError:
            raise TypeError(f"port: {port!r} is not an integer") from None
        if not 0 <= port <= 65535:
            raise ValueError(f"port: {port} is outside [0, 65535]")
        self._http = http.server.ThreadingHTTPServer((address, port), _handler_of(exporter))
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, name="qpi-distill-metrics", daemon=True)
        self._thread.start()
        logger.debug("metrics are served at http://%s:%d/metrics", address, self.port)

    def close(self) -> None:
        """Stop serving. A second call does nothing."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()

    def __enter__(self) -> Server:
        """Return the server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving."""
        self.close()


def _handler_of(exporter: Exporter) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S  # of a client that says nothing

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] == "/metrics"
            body = (exporter.render() if known else "The metrics are at /metrics.\n").encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE if known else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            logger.debug("metrics: " + format, *arguments)

    return Handler


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def _number(value: float) -> str:
    """Return a sample's value; a float32 as the shortest text that gives it back."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"
