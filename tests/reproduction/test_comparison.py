"""The comparison of all methods: energies, figures, resuming, bars, and the pages made of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch_geometric.utils import to_dense_adj

import gduq
import results
from gduq.disk import to_json
from gduq.metrics import ranking
from gduq_reproduction.bench import bench
from gduq_reproduction.comparison import comparison_table
from gduq_reproduction.comparison.bars import bars
from gduq_reproduction.comparison.cells import cells
from gduq_reproduction.comparison.comparison_result import overview
from gduq_reproduction.comparison.energies import GEBM, diffused, gnnsafe
from gduq_reproduction.comparison.methods import Work, made
from gduq_reproduction.comparison.scoring import LEVELS, MEASURES
from replication_pictures import MISSING, replication_pictures, sizes
from results_claims import claimed

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
RING = torch.stack([torch.arange(6), torch.arange(6).roll(1)])
EDGES = torch.cat([RING, RING.flip(0)], dim=1)  # node 6 has no neighbour


# -- energies --------------------------------------------------------------------------------------


def test_diffusion_is_the_dense_product() -> None:
    values = torch.randn(7, 3, generator=torch.manual_seed(0), dtype=torch.float64)
    dense = to_dense_adj(EDGES, max_num_nodes=7)[0].double()
    dense[6, 6] = 1.0  # it keeps its value
    step = 0.5 * torch.eye(7).double() + 0.5 * dense / dense.sum(dim=1, keepdim=True)
    assert torch.allclose(diffused(values, EDGES, 3), step @ step @ step @ values)
    assert torch.allclose(diffused(torch.ones(7), EDGES, 5), torch.ones(7))


def test_energies_are_larger_for_strange_nodes() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    h = torch.randn(40, 4, generator=generator) + 6.0 * y[:, None]
    logits = torch.stack([6.0 - h[:, 0], h[:, 0]], dim=1)
    none = torch.empty(2, 0, dtype=torch.long)
    model = GEBM.fit(logits, h, y)
    usual = model(logits, h, none)
    strange = model(logits, h + 30.0, none)  # the same logits, far from both classes
    assert (strange > usual.max()).all()
    assert (gnnsafe(0.1 * logits, none) > gnnsafe(logits, none)).all()


def test_gebm_of_a_class_without_training_rows() -> None:
    h, logits = torch.randn(9, 2, generator=torch.manual_seed(0)), torch.zeros(9, 3)
    model = GEBM.fit(logits + torch.arange(3.0), h, torch.arange(9) % 2)
    assert model(logits, h, torch.empty(2, 0, dtype=torch.long)).isfinite().all()


# -- figures ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Any:
    return replace(cells("smoke")[0], epochs=10, hidden=8)


@pytest.fixture(scope="module")
def table(small: Any, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    path = tmp_path_factory.mktemp("comparison") / "table.csv"
    for part in comparison_table.PARTS["smoke"]:
        comparison_table.work(comparison_table.ComparisonJob(small, 0, part, path))
    return comparison_table.read(path)


def test_every_method_has_every_level_and_measure(table: pd.DataFrame) -> None:
    judged = table[table["split"].isin(("id_test", "ood_test"))]
    assert judged[list(MEASURES)].notna().all(axis=None)
    whole = judged[~judged["method"].str.startswith(("candidate: ", "choose ", "T = 2"))]
    levels = whole.groupby(["method", "split"])["level"].apply(set)
    assert (levels == set(LEVELS)).all()
    assert {"plain", "ensemble of 3", "choose 1.2", "choose 2.5", "NFA", "L1"} <= set(
        judged["method"]
    )
    cost = table[table["split"] == "training"].set_index("method")["cost"]
    assert cost["plain"] == 1.0
    assert cost["choose 1.2"] < cost["choose 1.5"] < cost["choose 2.5"]


def test_a_temperature_on_validation_rows_keeps_the_labels_of_one_hypothesis(
    table: pd.DataFrame,
) -> None:
    plain = table[(table["method"] == "plain") & (table["split"] == "ood_test")]
    assert plain["accuracy"].nunique() == 1
    assert plain["nll"].nunique() > 1


def test_choose_is_that_of_the_library(small: Any) -> None:
    """Candidates are shared by the budgets of the comparison; the mixture is the same."""
    work = Work(small, 0)
    found = dict(made(work, "methods"))
    for budget in (1.2, 1.5):
        model = gduq.choose(
            work.plain,
            work.splits.train,
            work.views["id_val"],
            budget=budget,
            epochs=small.epochs,
            lr=small.lr,
            batch_size=small.batch_size,
            weight_decay=1e-3,
            seed=0,
            progress=False,
        )
        p = gduq.predict(model, work.views["ood_test"])
        assert torch.equal(p.probs, found[f"choose {budget}"].parts["ood_test"].probs)


def test_novelty_is_that_of_the_library(small: Any, table: pd.DataFrame) -> None:
    rows = table[table["method"] == "novelty"].set_index("level")["auroc"]
    assert set(rows.index) == {"novelty", "representation alone", "structure alone"}
    work = Work(small, 0)
    model = gduq.Network(work.plain)
    work.train(model, epochs=0)
    views = (work.views["id_test"], work.views["ood_test"])
    found = ranking.auroc(*(gduq.predict(model, view).novelty for view in views))
    assert rows["novelty"] == pytest.approx(found, abs=1e-4)


def test_what_is_done_is_not_repeated(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def rows(work: Work, part: str) -> Any:
        done.append(f"{work.cell.name} {part}")
        if part == "paper" and len(done) == 3:
            raise RuntimeError("no power")
        yield {"method": "plain", "level": "none", "split": "ood_test", "nll": 1.0}

    monkeypatch.setattr(comparison_table, "rows_of", rows)
    monkeypatch.setattr(comparison_table, "cells", lambda scale: [small])
    options: Any = {"scale": "smoke", "root": tmp_path, "workers": 0, "progress": False}
    first = bench("comparison", **options)
    assert list(first.failures) == [f"{small.name}, paper, seed 0"]
    second = bench("comparison", **options)
    assert not second.failures
    assert done == [f"{small.name} {part}" for part in ("methods", "novelty", "paper", "paper")]
    assert len(comparison_table.read(tmp_path / "comparison-smoke.csv")) == 3
    assert "Bars" in second.to_markdown()


def test_figures_of_other_settings_are_made_again(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"method": "plain", "level": "none", "split": "ood_test"}
    monkeypatch.setattr(
        comparison_table, "rows_of", lambda work, part: iter([{**said, "nll": work.cell.epochs}])
    )
    path = tmp_path / "table.csv"
    for cell in (small, replace(small, search=not small.search), replace(small, epochs=7)):
        comparison_table.work(comparison_table.ComparisonJob(cell, 0, "paper", path))
    found = comparison_table.read(path)
    assert found["nll"].tolist() == [7]  # the newest settings, once


# -- bars ------------------------------------------------------------------------------------------


def made_up(**methods: tuple[float, float]) -> pd.DataFrame:
    """Two cells, with the OOD NLL of methods in each."""
    rows = []
    for cell, place in (("a/covariate gcn", 0), ("b/concept gcn", 1)):
        for name, values in methods.items():
            method, _, level = name.partition("__")
            number = values[place]
            rows.append(
                {"cell": cell, "seed": 0, "part": "methods", "split": "ood_test", "level": level,
                 "method": method.replace("_", " ").replace("-", "."), "weights": None,
                 **dict.fromkeys(MEASURES, number), "cost": 1.0, "auroc": None}
            )  # fmt: skip
    return pd.DataFrame(rows).reset_index(drop=True)


def test_bars_count_cells() -> None:
    given = {"plain__validation": (1.0, 1.0), "plain__copies": (0.9, 0.9)}
    found = {bar.what: bar for bar in bars(made_up(**given, **{"choose_1-2__copies": (0.8, 1.01)}))}
    harm = found["choose(1.2): OOD NLL at most 2 % above plain + temperature scaling"]
    assert harm.met
    assert harm.got == "2 of 2 cells (100%)"
    lower = found["choose(1.2): lower OOD NLL than plain + temperature scaling"]
    assert (lower.met, lower.got) == (False, "1 of 2 cells (50%)")
    ensemble = found["choose(2.5): lower OOD NLL than an ensemble of 3"]
    assert ensemble.met is None


def test_regret_looks_at_candidates_within_the_budget() -> None:
    given = {"choose_1-2__copies": (1.0, 1.0), "candidate: one__copies": (0.99, 0.99)}
    table = made_up(**given, **{"candidate: dear__copies": (0.1, 0.1)})
    table.loc[table["method"] == "candidate: dear", "cost"] = 2.5
    found = {bar.what[:11]: bar for bar in bars(table) if "hindsight" in bar.what}
    assert found["choose(1.2)"].met


def test_means_are_of_cells_not_of_seeds() -> None:
    table = made_up(plain__none=(1.0, 3.0))
    more = table[table["cell"] == "b/concept gcn"].assign(seed=1, nll=5.0)
    found = overview(pd.concat([table, more]))
    assert found.loc[("plain", "none"), "nll"] == 2.5


# -- pages -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(table: pd.DataFrame) -> dict[str, Any]:
    """The summary of one cell and one seed, as it comes from its file."""
    paper = table[table["part"] == "paper"]
    published = pd.concat([paper, table.assign(part="controls")])
    return results.unpacked(results.packed(results.summary(table, published)))


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """The summary in the repository."""
    if not results.SUMMARY.is_file():
        pytest.skip("gduq bench comparison has not run yet")
    return results.unpacked(results.SUMMARY.read_text(encoding="utf-8"))


def test_pages_are_made_of_any_table(found: dict[str, Any]) -> None:
    """Every figure that is named in the notes is there."""
    made = results.pages(found)
    assert "cbas/color/concept gcn, 1 seed" in made["results/comparison.html"]
    assert "gduq.choose(budget=1.2)" in made["RESULTS.md"]
    assert "1 of 1 cells" in made["docs/replication.md"]
    for name, text in made.items():
        assert not re.search(r"\bnan\b", text.lower()), name
        assert "None" not in text, name


def test_counts_are_those_of_the_table(table: pd.DataFrame, found: dict[str, Any]) -> None:
    rows = table[table["split"] == "ood_test"].set_index(["method", "level"])["ece"]
    plain, ours = rows["plain", "none"], rows["NFA", "none"]
    count = found["claims"]["nfa_ece"]
    assert (count["won"], count["of"]) == (int(ours < plain), 1)
    assert (count["theirs"], count["ours"]) == (round(plain, 3), round(ours, 3))
    assert found["pairs"]["nfa_ece"] == {
        "cbas/color/concept gcn": {"theirs": round(plain, 3), "ours": round(ours, 3)}
    }
    assert "readout_ece" not in found["claims"]


def test_who_finds_errors_is_that_of_the_table(table: pd.DataFrame, found: dict[str, Any]) -> None:
    rows = table[table["part"] == "methods"].set_index(["method", "level", "split"])["errors"]
    away, told = rows.xs("ood_test", level=2), rows.xs("detection", level=2)
    apart = [away[name, "copies"] for name in ("choose 1.2", "ensemble of 3")]
    sure = [told[name, "msp"] for name in ("choose 1.2", "plain", "ensemble of 3")]
    shown = ["{:.2f} ({:.2f})".format(*apart), "{:.2f} ({:.2f}, {:.2f})".format(*sure)]
    assert found["kinds"]["nodes"]["1.2"][-2:] == shown
    assert "graphs" not in found["kinds"]  # none was measured


def test_sizes_of_published_networks_are_counted(found: dict[str, Any]) -> None:
    """One by one, and the best of several in each cell."""
    errors = {"gin": (0.2, 0.6, 0.7, 0.1), "pna": (0.4, 0.3, 0.5, 0.6), "gcn": (0.3, 0.4, 0.4, 0.9)}
    given = {"seed": 0, "part": "paper", "split": "ood_test", "level": "none"}
    rows = [
        {**given, "cell": f"tu/NCI1/size {conv}", "method": method, "ece": ece}
        for conv, own in errors.items()
        for method, ece in zip(("plain", "L1", "L2", "readout"), own, strict=True)
    ]
    made = claimed(
        pd.DataFrame(rows, columns=[*given, "cell", "method", *MEASURES, "auroc", "cost"])
    )
    count = made["claims"]["best_ece"]
    assert (count["won"], count["of"], count["theirs"], count["ours"]) == (2, 3, 0.3, 0.267)
    seeds = found["published_seeds"] | dict.fromkeys(made["pairs"]["best_ece"], 2)
    both = found | {"published_claims": made["claims"], "published_seeds": seeds}
    page = results.pages(both)["docs/replication.md"]
    assert "layer 1 in 1 of 3 cells (0.300 → 0.433)" in page
    assert "2 seeds" in page


def test_large_cells_come_last_and_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cell = cells("smoke")[0]
    both = [replace(cell, large=True, conv="a"), replace(cell, large=True, conv="b"), cell]
    monkeypatch.setattr(comparison_table, "cells", lambda scale: both)
    monkeypatch.setattr(comparison_table, "collect", lambda *given: None)
    orders = {}
    for scale in ("small", "paper"):

        def do(todo: Any, *args: Any, at: str = scale, **options: Any) -> list[Any]:
            orders[at] = [(job.cell.conv, job.seed) for job in todo]
            return []

        comparison_table.bench(scale, tmp_path, 2, "", do)  # type: ignore[arg-type]
    first = cell.conv
    runs = {scale: [key for key, _ in groupby(order)] for scale, order in orders.items()}
    assert set(runs["small"][:2]) == {(first, 0), (first, 1)} == set(runs["paper"][:2])
    one_by_one = [name for name, _ in groupby(name for name, _ in orders["small"])]
    assert one_by_one == [first, "a", "b"]
    large = [key for key in runs["paper"] if key[0] != first]
    assert large == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_a_summary_is_read_as_it_was_written(table: pd.DataFrame) -> None:
    made = results.summary(table, table.iloc[:0])
    assert made["published"] == {}
    assert results.unpacked(results.packed(made)) == json.loads(to_json(made))


def test_what_is_not_measured_is_said_in_the_picture(
    table: pd.DataFrame, found: dict[str, Any]
) -> None:
    """Without published networks, without the paper's networks, and with one cell alone."""
    own = table[table["part"] == "methods"]
    none = results.unpacked(results.packed(results.summary(own, table.iloc[:0])))
    pictures = replication_pictures(none)
    assert len(pictures) == 10
    assert all(MISSING in text for text in pictures.values())
    results.pages(none)
    some = replication_pictures(found)
    missing = {name.rpartition("-")[2][:-4] for name, text in some.items() if MISSING in text}
    assert missing >= {"sizes", "readout", "frozen", "published"}
    assert not missing & {"input"}


def test_sizes_are_those_of_published_networks_where_they_are(found: dict[str, Any]) -> None:
    row = dict.fromkeys(("nll", "ece", "accuracy"), 0.5)
    small = dict.fromkeys(("ece|none", "accuracy|none"), 0.5)
    cells = {"tu/NCI1/size pna": {"plain": small, "L1": small}}
    seeds = found["seeds"] | {"tu/NCI1/size pna": {"methods": 3, "paper": 3}}
    one = found | {"paper": cells, "seeds": seeds}
    assert sizes(one).count("small scale, 3 seeds") == 1
    assert sizes(one).count(MISSING) == 8
    figures = {"tu/NCI1/size pna": {"plain|none": row, "readout|none": row}}
    both = one | {"published": figures, "published_seeds": {"tu/NCI1/size pna": 1}}
    assert sizes(both).count("published, 1 seed") == 1
    assert "small scale" not in sizes(both)


def test_every_section_of_the_replication_has_a_picture_of_its_own() -> None:
    text = (ROOT / "docs/replication.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    named = [re.findall(r"!\[[^]]+\]\(([^)]+)\)", section) for section in sections]
    assert [len(names) for names in named] == [1] * 10
    assert len({names[0] for names in named}) == 10
    files = {f"docs/{names[0]}" for names in named}
    assert files == {str(path.relative_to(ROOT)) for path in PICTURES.glob("replication-*.svg")}


@pytest.mark.slow
def test_pictures_are_small_and_readable(kept: dict[str, Any]) -> None:
    """No letters below 6 pt; the same file every time."""
    made = replication_pictures(kept)
    for name, text in made.items():
        assert len(text) < 150_000, name
        letters = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text)]
        assert letters, name
        assert min(letters) >= 6, name
    assert replication_pictures(kept) == made


def test_the_page_stands_alone(found: dict[str, Any]) -> None:
    page = results.pages(found)["results/comparison.html"]
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?:|//\w", page)
    assert not re.search(r"\son\w+=|javascript:", page)
    links = set(re.findall(r"href=\"([^\"]+)\"", page))
    for link in links:
        inside = link.startswith("#") and f'id="{link[1:]}"' in page
        assert inside or (ROOT / "results" / link).is_file(), link
    assert len(re.findall(r" id=\"", page)) == len(set(re.findall(r" id=\"([^\"]+)", page)))


def test_the_summary_stays_small() -> None:
    assert results.SUMMARY.stat().st_size < 200_000


def test_figures_of_another_choice_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells("small")[0]
    before = {part: cell.fingerprint(part) for part in ("methods", "novelty", "paper")}
    monkeypatch.setattr("gduq_reproduction.comparison.cells.PLANS", {})
    changed = {part for part, print_ in before.items() if cell.fingerprint(part) != print_}
    assert changed == {"methods"}


def test_pages_say_what_the_summary_says(kept: dict[str, Any]) -> None:
    """Made again from results/summary.json they are what is in the repository."""
    for name, text in results.pages(kept).items():
        if not name.endswith(".svg"):  # which Matplotlib's version may change
            assert (ROOT / name).read_text(encoding="utf-8") == text, name


@pytest.fixture(scope="module")
def tables() -> list[pd.DataFrame]:
    """Those in the repository: small and published."""
    paths = (comparison_table.table_path(ROOT / "results", scale) for scale in ("small", "paper"))
    found = [comparison_table.read(path) for path in paths]
    if not len(found[0]):
        pytest.skip("gduq bench comparison has not run yet")
    return found


def test_verdicts_of_the_replication_are_those_of_the_tables(tables: list[pd.DataFrame]) -> None:
    """Counted again by hand; each is what a section's bold sentence rests on."""
    text = (ROOT / "docs/replication.md").read_text(encoding="utf-8")
    sections = re.split(r"^## \d+\. ", text, flags=re.MULTILINE)
    small, published = (
        rows[rows["split"] == "ood_test"].groupby(["cell", "method", "level"]).mean(True)
        for rows in tables
    )

    def of(rows: pd.DataFrame, what: str, cells: str, method: str, level: str = "none") -> Any:
        own = rows[what].xs((method, level), level=("method", "level"))
        return own[own.index.str.contains(cells)].sort_index()

    def said(theirs: Any, ours: Any, more: bool = False) -> str:
        won = int((ours > theirs).sum() if more else (ours < theirs).sum())
        return f"{won} of {len(ours)} cells ({theirs.mean():.3f} → {ours.mean():.3f}"

    layers = ("L1", "L2", "readout")
    for what, better in (("ece", "min"), ("accuracy", "max")):
        own = pd.DataFrame({m: of(published, what, "^tu/", m) for m in layers})
        best = own.agg(better, axis=1)
        assert said(of(published, what, "^tu/", "plain"), best, better == "max") in sections[3]
    plain = of(small, "accuracy", "^(?:tu|motif|molecules)/", "plain")
    near = sum(value < (0.383 if "motif" in cell else 0.55) for cell, value in plain.items())
    assert f"In {near} of {len(plain)} cells" in sections[4]
    for cell in ("cbas/color/concept", "webkb/university/covariate", "webkb/university/concept"):
        own = published.loc[f"{cell} gcn", "ece"].unstack("method")[["plain", "NFA"]]
        own = own.drop(["validation", "copies"]).dropna()
        assert f"{cell} {(own['NFA'] < own['plain']).sum()} of {len(own)}" in sections[5]
    for level, what in (("none", "ece"), ("copies", "ece"), ("copies", "nll")):
        both = [of(published, what, "^tu/", m, level) for m in ("readout", "pretrained")]
        assert said(*both) in sections[6]
    both = [of(published, "nll", "^tu/", m, "copies") for m in ("ensemble of 3", "readout")]
    assert said(*both) in sections[7]
    told = tables[0][tables[0]["level"] == "msp"].groupby(["cell", "method"])["auroc"].mean()
    told = told.unstack()[["plain", "pretrained"]].loc[plain.index]
    assert said(told["plain"], told["pretrained"], more=True) in sections[9]


def test_the_summary_is_that_of_the_table(tables: list[pd.DataFrame]) -> None:
    table, published = tables
    made = results.packed(results.summary(table, published))
    assert made == results.SUMMARY.read_text(encoding="utf-8")
