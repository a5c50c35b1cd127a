"""The service answers as `gduq.predict` does, names what it cannot answer, and has bounds."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch_geometric.data import Data

import gduq
from gduq.errors import InputError
from gduq.nn import GNN
from gduq.serve.batching import Batcher
from gduq.serve.server import Limits
from gduq.serve.service import Service
from tests.serve.cases import EVIL, KINDS, SMILES, app, as_json, model, molecules, service

pytest.importorskip("rdkit")
TestClient = pytest.importorskip("fastapi.testclient", reason="needs gduq[serve]").TestClient


@pytest.fixture(scope="module", params=KINDS)
def asked(request):
    of = service(request.param, referred=True)
    with TestClient(app(of)) as client:
        yield request.param, of, client


@pytest.fixture(scope="module")
def client():
    with TestClient(app(service())) as found:
        yield found


def ask(client, code=200, **query):
    reply = client.post("/predict", json=query)
    assert reply.status_code == code, reply.text
    return reply.json()


def number(client, sample):
    """A number at /metrics."""
    lines = client.get("/metrics").text.splitlines()
    return float(dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")[sample])


def same(answers, columns):
    """Whether answers hold the columns of `gduq predict`."""
    for name, values in columns.items():
        found = [answer[name] for answer in answers]
        if isinstance(values[0], float):
            expected = [v if math.isfinite(v) else None for v in values]
            assert found == pytest.approx(expected, abs=1e-5), name
        else:
            assert found == values, name
    assert set(answers[0]) - {"row", "smiles", "node"} == set(columns)


# -- answers -------------------------------------------------------------------------------------


def test_answers_are_those_of_predict(asked):
    kind, of, client = asked
    p = gduq.predict(model(kind), [molecules(kind)[i] for i in range(len(SMILES))])
    columns = of.columns(p)
    columns = {name: values for name, values in columns.items() if not name.startswith("target")}
    found = ask(client, smiles=SMILES)
    assert found["rejected"] == []
    assert [a["smiles"] for a in found["answers"]] == SMILES
    assert [a["row"] for a in found["answers"]] == list(range(len(SMILES)))
    same(found["answers"], columns)
    found = ask(client, graphs=[as_json(g) for g in molecules(kind)[: len(SMILES)]])
    same(found["answers"], columns)
    assert "smiles" not in found["answers"][0]


def test_node_models_answer_per_node():
    net = GNN(3, 4, 2, num_layers=1, task="node").eval()
    x = torch.randn(5, 3)
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    with TestClient(app(Service(net))) as client:
        graph = {"x": x.tolist(), "edge_index": edges.tolist()}
        small = {"x": [[1, 2, 3]], "edge_index": []}
        found = ask(client, graphs=[graph, small])["answers"]
    assert [(a["row"], a["node"]) for a in found] == [(0, n) for n in range(5)] + [(1, 0)]
    p = gduq.predict(net, Data(x=x, edge_index=edges))
    assert [a["prob_1"] for a in found[:5]] == pytest.approx(p.probs[:, 1].tolist(), abs=1e-6)


# -- bad graphs ----------------------------------------------------------------------------------


# thousands of atoms, each bound to its neighbours and to one 37 places away
BUSY = "".join(f"C%{10 + i}" for i in range(37)) * 200
GOOD = {"x": [[0.0] * 9] * 2, "edge_index": [[0], [1]], "edge_attr": [[0.0] * 3]}
CHANGES = [
    *({"edge_index": value} for value in ([[0], [2]], [[-1], [0]], [[0.5], [1]], [[0, 1]], 3)),
    *({"x": [[value] * 9] * 2} for value in ("a", None, True, 1e999, 10**400)),
    *({"x": value} for value in ([], [[0.0] * 8] * 2, [[0.0] * 9, [0.0] * 8])),
    *({"edge_attr": [[0.0] * 3] * 5}, {"batch": [0, 1]}, {"__class__": [1]}, {"y": [1]}),
    {"num_nodes": 10**12},
]
BAD = [{}, 7, None, {"edge_index": [[0], [1]]}, *({**GOOD, **change} for change in CHANGES)]


def test_bad_graphs_are_named_and_the_rest_is_answered(client):
    body = json.dumps({"graphs": [GOOD, *BAD, GOOD]})  # 1e999 is Infinity there
    reply = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert [a["row"] for a in found["answers"]] == [0, len(BAD) + 1]
    assert [r["row"] for r in found["rejected"]] == list(range(1, len(BAD) + 1))
    assert all(r["reason"] for r in found["rejected"])


def test_bad_smiles_are_named(client):
    head = {"name": EVIL, "digest": "0" * 16}
    assert ask(client, smiles=[]) == {"model": head, "answers": [], "rejected": []}
    found = ask(client, smiles=["CCO", "C1CC", "", 7, "C" * 3000, EVIL, "CCC"])
    assert [a["row"] for a in found["answers"]] == [0, 6]
    assert [r["row"] for r in found["rejected"]] == [1, 2, 3, 4, 5]


def test_graphs_of_other_attributes_do_not_meet(client):
    """Joined, the bare graph would take the others' edge features, or take them away."""
    bare = {name: GOOD[name] for name in ("x", "edge_index")}
    extra = {**GOOD, "pos": [[0.0, 0.0]] * 2}
    found = ask(client, graphs=[GOOD, bare, extra])
    assert len(found["answers"]) == 3
    alone = [ask(client, graphs=[graph])["answers"][0] for graph in (GOOD, bare, extra)]
    for one, together in zip(alone, found["answers"], strict=True):
        assert together["prob_big"] == pytest.approx(one["prob_big"], abs=1e-6)


# -- requests that are refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 422),
        (b"nonsense", 422),
        (b"[1, 2]", 422),
        (b'{"smiles": "CCO"}', 422),
        (b'{"smiles": ["C"], "graphs": []}', 422),
        (b"{}", 422),
        (b'{"path": "/etc/passwd"}', 422),
        (b'{"graphs": ' + b"[" * 100_000, 422),
        (b'{"smiles": [' + b'"C",' * 1000 + b'"C"]}', 413),
        (b'{"smiles": ["' + b"C" * 9_000_000 + b'"]}', 413),
        (b'{"smiles": ["\xff\xfe"]}', 422),
    ],
)
def test_requests_that_cannot_be_read_are_refused(client, body, code):
    reply = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == code, reply.text
    assert reply.json()["detail"]
    assert ask(client, smiles=["CCO"])["answers"], "the next one is answered"


def test_bodies_without_a_length_are_bounded():
    with TestClient(app(service(), Limits(body=5000))) as client:
        pieces, kind = (b" " * 1000 for _ in range(100)), {"content-type": "application/json"}
        assert client.post("/predict", content=pieces, headers=kind).status_code == 413


def test_forms_of_other_sites_are_refused(client):
    kind = {"content-type": "text/plain"}
    assert client.post("/predict", content=b'{"smiles": []}', headers=kind).status_code == 415


def test_other_host_names_are_refused():
    with TestClient(app(service(), hosts=["127.0.0.1", "[::1]"])) as client:
        for name, code in (("127.0.0.1", 200), ("[::1]", 200), ("evil.example", 400), ("", 400)):
            for host in (name, f"{name}:8000"):
                assert client.get("/health", headers={"host": host}).status_code == code


# -- bounds --------------------------------------------------------------------------------------


class Gate(Service):
    """A service whose model waits until it is let through, and notes the size of its passes."""

    def __init__(self) -> None:
        super().__init__(model(), class_names=["small", "big"])
        self.open, self.sizes = threading.Event(), list[int]()

    def answer(self, graphs, labelled=True):
        self.sizes.append(len(graphs))
        assert self.open.wait(30)
        return super().answer(graphs, labelled)


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_requests_that_wait_share_a_pass():
    gate = Gate()
    with TestClient(app(gate)) as client, ThreadPoolExecutor(6) as pool:
        first = pool.submit(ask, client, smiles=["C"])
        wait_for(lambda: gate.sizes)
        others = [pool.submit(ask, client, smiles=[s, "bad!"]) for s in SMILES[:5]]
        wait_for(lambda: client.get("/health").json()["waiting"] == 6)
        gate.open.set()
        assert first.result()["answers"][0]["smiles"] == "C"
        found = [other.result() for other in others]
        assert sum(gate.sizes) == 6 > len(gate.sizes)
        assert [f["answers"][0]["smiles"] for f in found] == SMILES[:5]
        assert all(f["rejected"][0]["row"] == 1 for f in found)
        counts = {"rows": 6, "rejected": 5, "passes": len(gate.sizes)}
        assert {name: number(client, f"gduq_{name}_total") for name in counts} == counts


def test_passes_have_bounds():
    gate = Gate()
    gate.open.set()
    with TestClient(app(gate, Limits(batch=4))) as client:
        assert len(ask(client, smiles=SMILES)["answers"]) == len(SMILES)
    assert max(gate.sizes) == 4
    gate.sizes.clear()
    with TestClient(app(gate, Limits(nodes=20))) as client:
        found = ask(client, smiles=["CCCCCCCCCC"] * 5 + ["C" * 21])
    assert gate.sizes == [2, 2, 1]
    assert "at most 20 nodes" in found["rejected"][0]["reason"]
    gate.sizes.clear()
    with TestClient(app(gate, Limits(edges=20))) as client:
        ask(client, smiles=["CCCCCC"] * 3)  # ten directed edges each
    assert gate.sizes == [2, 1]


def test_a_full_queue_sends_requests_away():
    gate = Gate()
    with TestClient(app(gate, Limits(queue=2))) as client, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, client, smiles=[s]) for s in ("C", "CC")]
        wait_for(lambda: client.get("/health").json()["waiting"] == 2)
        assert client.get("/ready").status_code == 503
        reply = client.post("/predict", json={"smiles": ["CCC"]})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        gate.open.set()
        assert all(w.result()["answers"] for w in waiting)


def test_a_request_that_takes_too_long_is_told_so():
    gate = Gate()
    with TestClient(app(gate, Limits(seconds=0.3))) as client, ThreadPoolExecutor(2) as pool:
        both = [pool.submit(ask, client, 504, graphs=[GOOD]) for _ in range(2)]
        assert all(one.result()["detail"] for one in both)
        gate.open.set()
        wait_for(lambda: client.get("/health").json()["waiting"] == 0)
        assert number(client, "gduq_passes_total") == 1, "nobody waits for the second any more"


@pytest.mark.parametrize(
    "columns", [lambda p: 1 / 0, lambda p: {"label": [object()] * len(p)}], ids=["fails", "no JSON"]
)
def test_a_model_that_fails_does_not_end_the_service(monkeypatch, columns):
    of = service()
    monkeypatch.setattr(of, "columns", columns)
    with TestClient(app(of)) as client:
        assert ask(client, 500, smiles=["C"])["detail"]
        monkeypatch.undo()
        assert ask(client, smiles=["C"])["answers"]


class Slow(Service):
    """A tenth of a second for a pass."""

    def answer(self, graphs, labelled=True):
        time.sleep(0.1)
        return super().answer(graphs, labelled)


def test_a_small_request_does_not_wait_for_large_ones():
    of = Slow(model(), class_names=["small", "big"])
    limits = Limits(batch=10)
    with TestClient(app(of, limits)) as client, ThreadPoolExecutor(5) as pool:
        large = [pool.submit(ask, client, smiles=["C" * 40] * 50) for _ in range(4)]  # 20 passes
        wait_for(lambda: number(client, "gduq_passes_total"))
        assert ask(client, smiles=["CCO"])["answers"]
        assert number(client, "gduq_passes_total") < 10
        assert not any(one.done() for one in large)
        rows = [[answer["row"] for answer in one.result()["answers"]] for one in large]
    assert rows == [list(range(50))] * 4


def test_stopping_does_not_wait_for_what_is_left():
    batcher = Batcher(Slow(model()), Limits(batch=1), list)

    async def leave():
        asked = asyncio.create_task(batcher.answer(["C"] * 500))
        await asyncio.sleep(0.5)
        batcher.close()
        asked.cancel()

    start = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - start < 5


def test_a_molecule_that_keeps_rdkit_busy_is_named_and_takes_nothing_from_others():
    limits = Limits(reading=0.5, smiles=100_000)
    with TestClient(app(service(), limits)) as client, ThreadPoolExecutor(3) as pool:
        asked = [["CCO", "CC"], ["CN", BUSY * 3, "CCC"], ["CCN"]]
        found = [other.result() for other in [pool.submit(ask, client, smiles=t) for t in asked]]
        answered = [[a["smiles"] for a in one["answers"]] for one in found]
        assert answered == [["CCO", "CC"], ["CN"], ["CCN"]]
        assert [r["row"] for r in found[1]["rejected"]] == [1, 2]
        assert client.get("/draw", params={"smiles": BUSY}).status_code == 422
        assert client.get("/draw", params={"smiles": "CCO"}).status_code == 200


def test_edges_are_not_served():
    of = service()
    of.__class__ = type("Edges", (Service,), {"rows": "edge"})
    with pytest.raises(InputError):
        app(of)


# -- other routes --------------------------------------------------------------------------------


def test_the_card_says_what_to_expect(asked):
    kind, _, client = asked
    found = client.get("/model").json()
    names = {"classes": ["small", "big"], "labels": ["big", "not tiny"], "values": ["size"]}
    units = ["nm"] if kind == "values" else None
    assert found["answers"] == kind
    assert found["target"] == {"columns": ["activity"], "names": names[kind], "units": units}
    assert found["calibration"]["fitted_on"] == "shifted"
    assert found["novelty"] == {"training_rows": 15, "validation_rows": 30}
    assert found["decisions"]["reference_rows"] == 45
    assert found["limits"]["graphs"] == 1000


def test_routes_are_described(client):
    schema = client.get("/openapi.json").json()
    routes = {"/predict", "/health", "/ready", "/metrics", "/model", "/draw"}
    assert set(schema["paths"]) == routes
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert {"smiles", "graphs"} == set(body["schema"]["properties"])
    assert "edge_index" in body["schema"]["properties"]["graphs"]["items"]["properties"]


def test_molecules_are_drawn(client):
    reply = client.get("/draw", params={"smiles": "c1ccccc1O"})
    assert reply.headers["content-type"].startswith("image/svg+xml")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    for bad, code in (("C" * 201, 422), ("C" * 2001, 413), (EVIL, 422)):
        assert client.get("/draw", params={"smiles": bad}).status_code == code


def test_the_page_escapes_names(client):
    page = client.get("/")
    assert EVIL not in page.text
    assert "&lt;img src=x" in page.text
    assert "'unsafe-inline'" not in page.headers["content-security-policy"].split("style-src")[0]
