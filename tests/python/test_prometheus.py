"""The exporter: the text is what Prometheus reads, and says what the flight recorder said."""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.request

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qpi_distill as qpi
from qpi_distill import _isv
from qpi_distill.isv import code_name
from qpi_distill.prometheus import CONTENT_TYPE, Exporter

FIELDS = [name for name, _, _ in _isv.FLIGHT_FIELDS]


def trained(steps=5, summary=True, **values):
    """Return an ISV with an open recorder after some steps, of which some rows are bad."""
    rng = np.random.default_rng(0)
    isv = qpi.ISV(device="cpu", **values)
    recorder = qpi.Recorder(isv)
    op = qpi.Distiller(actions=3, support=qpi.linspace(-2, 2, 5), isv=isv, reduction="mean", summary=summary)
    for _ in range(steps):
        q, pi = rng.normal(size=(8, 3, 5)).astype(np.float32), rng.normal(size=(8, 3)).astype(np.float32)
        q[0, 0, 0] = np.nan
        op.step(q, pi, np.zeros_like(pi))
    return isv, recorder


def reasons_of(samples, of):
    return {dict(k[1:])["reason"]: n for k, n in samples.items() if k[0].endswith("reasons_total") and ("of", of) in k}


def parsed(text):
    """Return {(name, labels): value} and {family: (type, help)}, as the official client reads the text."""
    parser = pytest.importorskip("prometheus_client.parser")
    samples, families = {}, {}
    for family in parser.text_string_to_metric_families(text):
        families[family.name] = family.type, family.documentation
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return samples, families


def test_every_field_is_told():
    isv, recorder = trained()
    exporter = Exporter(recorder, namespace="q")
    assert exporter.update() == 5
    samples, families = parsed(exporter.render())
    values, last = isv.read(check=False), recorder.records[-1]
    told = set()
    for field in FIELDS:
        if field in ("lam_law", "tau_law"):
            of, slot = field.split("_")[0], field
            assert samples["q_law", ("law", getattr(values, slot)), ("of", of)] == 1
        elif field in ("reason", "tau_reason"):
            of = "lam" if field == "reason" else "tau"
            counted = reasons_of(samples, of)
            names, counts = np.unique([code_name(field, c) for c in recorder.records[field]], return_counts=True)
            assert counted == dict(zip(names, counts, strict=True))
        elif field == "faults":
            faults = {dict(key[1:])["fault"] for key in samples if key[0] == "q_fault"}
            assert faults == set(_isv.FAULTS)
        elif field in ("commits", "observations"):
            assert samples[f"q_{field}_total",] == values[field]
            assert families[f"q_{field}"][0] == "counter"
        elif last[field] >= 0 or field == "lam":
            assert np.float32(samples[f"q_{field}",]) == np.float32(last[field])
            assert families[f"q_{field}"][0] == "gauge"
        told.add(field)
    assert told == set(FIELDS)
    assert samples["q_rows_total",] == recorder.records["rows_last"].sum() == 35
    assert samples["q_skipped_rows_total",] == 5
    assert samples["q_lost_records_total",] == 0
    assert samples["q_last_update_timestamp_seconds",] > 1e9
    for name, (kind, text) in families.items():
        assert text, name
        assert kind in ("gauge", "counter")


def test_reasons_are_counted_over_updates():
    isv, recorder = trained(steps=0)
    exporter = Exporter(recorder)
    for commits in (3, 2):
        for _ in range(commits):
            isv.commit()
        assert exporter.update() == commits
    assert exporter.update() == 0
    samples, _ = parsed(exporter.render())
    assert reasons_of(samples, "lam") == {"no_rows": 5}
    assert samples["qpi_distill_commits_total",] == 5


def test_what_was_not_measured_is_not_there():
    _, recorder = trained(summary=False)
    exporter = Exporter(recorder)
    exporter.update()
    assert "agreement" not in exporter.render()
    assert "qpi_distill_kl_last " in exporter.render()


def test_before_the_first_record():
    _, recorder = trained(steps=0)
    exporter = Exporter(recorder)
    assert parsed(exporter.render())[0] == {("qpi_distill_lost_records_total",): 0}
    assert exporter.update() == 0


def test_lost_records_and_faults():
    isv = qpi.ISV(device="cpu")
    recorder = qpi.Recorder(isv, 2, keep=False)
    exporter = Exporter(recorder)
    isv.slots[[s.name for s in qpi.ISV.slot_info()].index("tau")] = -1.0
    op = qpi.Distiller(actions=2, support=[0, 1], isv=isv, reduction="sum")
    for _ in range(5):
        op.step(np.zeros((1, 2, 2), np.float32), np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))
    exporter.update(recorder.drain())  # whoever has drained hands on
    samples, _ = parsed(exporter.render())
    assert samples["qpi_distill_lost_records_total",] == 3
    faults = isv.read(check=False).faults
    assert "tau" in faults
    for name in _isv.FAULTS:
        assert samples["qpi_distill_fault", ("fault", name)] == (name in faults)
    recorder.close()
    with pytest.raises(ValueError, match="closed"):
        exporter.update()


@given(st.text(), st.text())
def test_any_label_value_is_read_back(one, other):
    _, recorder = trained(steps=0)
    parser = pytest.importorskip("prometheus_client.parser")
    text = Exporter(recorder, labels={"run": one, "host": other}).render()
    # The format is of lines, by \n alone; its own parser splits text streams so.
    (family,) = parser.text_fd_to_metric_families(iter(line + "\n" for line in text.split("\n") if line))
    assert family.samples[0].labels == {"run": one, "host": other}


def test_the_text_is_that_of_the_format():
    _, recorder = trained(steps=0)
    text = Exporter(recorder, labels={"run": 'a"b\\c\nd'}).render()
    assert text == (
        "# HELP qpi_distill_lost_records_total commits lost before they were drained\n"
        "# TYPE qpi_distill_lost_records_total counter\n"
        'qpi_distill_lost_records_total{run="a\\"b\\\\c\\nd"} 0\n'
    )


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"labels": {"of": "x"}}, ValueError, "labels: 'of'"),
        ({"labels": {"__x": "x"}}, ValueError, "labels: '__x'"),
        ({"labels": {"a-b": "x"}}, ValueError, "labels: 'a-b'"),
        ({"labels": {"rank": 3}}, TypeError, "labels: rank=3 is not a str"),
        ({"namespace": "1x"}, ValueError, "namespace: '1x'"),
    ],
)
def test_bad_options(options, error, says):
    _, recorder = trained(steps=0)
    with pytest.raises(error, match=says):
        Exporter(recorder, **options)


def test_another_object_is_no_recorder():
    with pytest.raises(TypeError, match=r"recorder: ISV is not a qpi\.Recorder"):
        Exporter(qpi.ISV(device="cpu"))


def test_numbers_that_are_none():
    _, recorder = trained(steps=1)
    exporter = Exporter(recorder)
    records = recorder.drain().copy()
    for value, text in ((np.inf, "+Inf"), (-np.inf, "-Inf"), (np.nan, "NaN")):
        records["lam"] = value
        exporter.update(records)
        assert f"qpi_distill_lam {text}\n" in exporter.render()


def test_the_file_is_replaced_as_a_whole(tmp_path):
    _, recorder = trained()
    exporter = Exporter(recorder)
    path = tmp_path / "qpi.prom"
    path.write_text("old")
    exporter.update()
    exporter.write(path)
    assert path.read_text() == exporter.render()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        exporter.write(tmp_path / "none" / "qpi.prom")


def test_the_endpoint(caplog):
    caplog.set_level(logging.DEBUG, "qpi_distill")
    isv, recorder = trained()
    exporter = Exporter(recorder, labels={"run": "größe"})
    with exporter.serve(port=0) as server:
        url = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert "commits_total" not in answer.read().decode()  # not before the trainer says so
        isv.commit()
        exporter.update()
        with urllib.request.urlopen(f"{url}/metrics?x=1") as answer:
            assert answer.read().decode() == exporter.render()
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("HEAD", "/metrics")
        assert (connection.getresponse().read(), connection.sock is None) == (b"", True)
        connection.request("GET", "/")
        assert connection.getresponse().status == 404
        with pytest.raises(OSError, match="in use"):
            exporter.serve(port=server.port)
        port = server.port
    server.close()  # again
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port).request("GET", "/metrics")
    assert any("/metrics" in record.message for record in caplog.records)


def test_scrapes_during_updates_are_whole():
    isv, recorder = trained(steps=1)
    exporter = Exporter(recorder)
    exporter.update()
    stop, wrong = threading.Event(), []

    def scrape():
        while not stop.is_set():
            lines = dict(line.rsplit(" ", 1) for line in exporter.render().splitlines() if line[0] != "#")
            reasons = sum(int(value) for name, value in lines.items() if 'of="lam",reason' in name)
            if reasons != int(lines["qpi_distill_commits_total"]):
                wrong.append(lines)

    thread = threading.Thread(target=scrape)
    thread.start()
    for _ in range(300):
        isv.commit()
        exporter.update()
    stop.set()
    thread.join()
    assert wrong == []


@pytest.mark.parametrize(("port", "error"), [(-1, ValueError), (65536, ValueError), ("http", TypeError)])
def test_bad_ports(port, error):
    _, recorder = trained(steps=0)
    with pytest.raises(error, match="port"):
        Exporter(recorder).serve(port=port)
