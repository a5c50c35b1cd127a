"""An operator sees what the service does, and whether rows are like the training data."""

from __future__ import annotations

import logging
import re

import pytest

from gduq.errors import InputError
from gduq.nn import GNN
from gduq.serve.server import read_keys
from gduq.serve.service import Service
from tests.serve.cases import EVIL, SMILES, app, molecules, service
from tests.serve.test_http import ask, number

pytest.importorskip("rdkit")
TestClient = pytest.importorskip("fastapi.testclient", reason="needs gduq[serve]").TestClient
ODD = ["BrBr", "ClCl", "II"]
ASKED = SMILES + ODD
SAMPLE = re.compile(
    r'[a-z_]+(\{[a-z]+="(?:[^"\\]|\\.)*"(,[a-z]+="(?:[^"\\]|\\.)*")*\})? [0-9.e+-]+'
)


def test_metrics_say_what_was_answered():
    with TestClient(app(service("labels", referred=True))) as client:
        found = ask(client, smiles=[*ASKED, "bad!"])
        assert client.get(f"/{EVIL}").status_code == client.get("/other").status_code == 404
        lines = client.get("/metrics").text.splitlines()
        assert number(client, 'gduq_requests_total{route="/predict",status="200"}') == 1
        assert number(client, 'gduq_requests_total{route="other",status="404"}') == 2
        assert number(client, 'gduq_request_seconds_count{route="/predict"}') == 1
        assert number(client, "gduq_rows_total") == len(ASKED)
        assert number(client, "gduq_rejected_total") == 1
        trust = [v for a in found["answers"] for k, v in a.items() if k.startswith("trust_")]
        assert number(client, "gduq_trust_count") == len(trust) == 2 * len(ASKED)
        assert number(client, "gduq_trust_sum") == pytest.approx(sum(trust), abs=1e-4)
        reasons = [answer["abstain"] for answer in found["answers"]]
        for reason in {*reasons} - {None}:
            sample = f'gduq_abstained_total{{reason="{reason}"}}'
            assert number(client, sample) == reasons.count(reason) > 0
        below = number(client, 'gduq_novelty_bucket{le="0.5"}')
        assert below == sum(a["novelty"] <= 0.5 for a in found["answers"])
        assert number(client, 'gduq_novelty_bucket{le="+Inf"}') == len(ASKED)
        count = len(client.get("/metrics").text.splitlines())
        _ = [client.get(f"/{EVIL}{n}") for n in range(9)], ask(client, smiles=ASKED)
        assert len(client.get("/metrics").text.splitlines()) == count, "memory does not grow"
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(families)) == len(families)
    assert all(SAMPLE.fullmatch(line) for line in lines if line[0] != "#")


def test_an_alarm_is_raised_once_rows_are_not_like_the_validation_rows(caplog):
    with TestClient(app(service(referred=True))) as client:
        ask(client, smiles=SMILES)
        found = client.get("/health").json()["monitor"]
        assert (found["alarm"], found["alarm_at"], found["rows"]) == (False, None, len(SMILES))
        for _ in range(20):
            ask(client, smiles=["C" * 60, *ODD])
        found = client.get("/health").json()["monitor"]
        assert found["alarm"]
        assert len(SMILES) < found["alarm_at"] < found["rows"] == len(SMILES) + 80
        assert number(client, "gduq_monitor_alarm") == 1
        assert number(client, "gduq_monitor_log_capital") == found["log_capital"] > 3
    [warning] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert f"row {found['alarm_at']}" in warning.getMessage()


def test_only_graphs_with_the_novelty_of_a_reference_are_watched():
    bare, nodes = (Service(GNN(9, 4, 2, num_layers=1, task=t).eval()) for t in ("graph", "node"))
    nodes.refer_to(service(referred=True).reference)
    bare.refer_to(bare.answer(molecules("classes")))
    assert service().monitor() is nodes.monitor() is bare.monitor() is None
    with TestClient(app(bare)) as client:
        ask(client, smiles=["CCO"])
        assert client.get("/health").json()["monitor"] is None
        assert number(client, "gduq_novelty_count") == 0


def test_each_request_has_an_id_and_a_line(caplog):
    caplog.set_level(logging.INFO, "gduq")
    with TestClient(app(service())) as client:
        reply = client.post("/predict", json={"smiles": ["CCO"]}, headers={"X-Request-ID": "a-7"})
        assert reply.headers["x-request-id"] == "a-7"
        made = [
            client.get("/ready", headers={"X-Request-ID": i}).headers
            for i in ("", "a b", "a" * 101)
        ]
        assert all(re.fullmatch("[0-9a-f]{16}", one["x-request-id"]) for one in made)
        client.get("/a%0Ab c")
    lines = [one.getMessage() for one in caplog.records]
    assert re.fullmatch(r"a-7 POST /predict 200 rows=1 abstained=0 rejected=0 ms=[\d.]+", lines[0])
    assert re.fullmatch(r"\w{16} GET /a%0Ab%20c 404 ms=[\d.]+", lines[-1])
    assert len(lines) == 5


def test_keys_are_asked_for(tmp_path):
    (tmp_path / "keys").write_text("first-key\n\n second \nключ", encoding="utf-8")
    keys = read_keys(tmp_path / "keys")
    with TestClient(app(service(), keys=keys)) as client:
        for path, code in (("/", 401), ("/metrics", 401), ("/health", 200), ("/ready", 200)):
            assert client.get(path).status_code == code
        assert client.get("/model").headers["www-authenticate"] == "Bearer"
        for name, value, code in (
            ("Authorization", "Bearer first-key", 200),
            ("X-API-Key", "second", 200),
            ("X-API-Key", "ключ".encode(), 200),
            ("Authorization", "Basic first-key", 401),
            ("X-API-Key", "secon", 401),
            ("X-API-Key", "", 401),
        ):
            assert client.get("/model", headers={name: value}).status_code == code
    (tmp_path / "keys").write_text(" \n", encoding="utf-8")
    with pytest.raises(InputError):
        read_keys(tmp_path / "keys")


def test_it_is_ready_until_it_stops():
    with TestClient(app(service())) as client:
        assert client.get("/ready").json() == {"ready": True}
    assert client.get("/ready").status_code == client.get("/health").status_code == 503
