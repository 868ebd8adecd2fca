"""The simulator: what it shows of the laws, and that it runs what it says."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qpi_distill as qpi
from qpi_distill import cli
from qpi_distill.simulate import STUDIES, Arm, Plant, arm, simulate
from qpi_distill.simulate.main import run_study
from qpi_distill.simulate.plant import Table
from reference import Laws

SMALL = Plant(states=32, actions=4, rows=8)


def figures(name, *, steps, seeds, laws=None):
    """Summaries of a study at another length, by plant and law."""
    study = STUDIES[name]
    plants = {n: dataclasses.replace(p, drift=p.drift * steps // study.steps) for n, p in study.plants.items()}
    arms = tuple(a for a in study.arms if laws is None or a.name in laws)
    burn_in = study.burn_in * steps // study.steps
    study = dataclasses.replace(study, plants=plants, arms=arms, steps=steps, seeds=seeds, burn_in=burn_in)
    return {(plant, out.arm.name): out.summary(burn_in) for plant, out in run_study(study, 2)}


# ---- what it shows -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collapse():
    return figures("collapse", steps=3000, seeds=3)


def test_an_aligned_row_0_makes_every_law_collapse(collapse):
    """In every seed: lam at its floor, or on the way there, the batch far off, and the law is shown next to nothing."""
    for law, floor in (("symmetric", 0.0011), ("seed", 0.051), ("log_pi", 0.02)):
        seen = collapse["row 0, one fixed state", law]
        assert (seen["lam"] <= floor).all(), law
        assert (seen["kl_end"] > 2.5).all(), law
        assert (seen["kl_seen"] < 0.5).all(), law
        assert (seen["agreement"] < 0.2).all(), law


@pytest.mark.parametrize("sensor", ["row 0, random", "batch mean"])
@pytest.mark.parametrize("law", ["symmetric", "seed", "log_pi"])
def test_an_unbiased_sensor_collapses_no_law(collapse, sensor, law):
    seen = collapse[sensor, law]
    assert (seen["lam"] > 0.25).all()
    assert (seen["kl_end"] < 1.3).all()
    biased = collapse["row 0, one fixed state", law]
    assert seen["agreement"].min() > biased["agreement"].max()


def test_the_mean_steadies_what_one_row_shakes(collapse):
    for law in ("symmetric", "log_pi"):
        assert (collapse["batch mean", law]["log_std"] < collapse["row 0, random", law]["log_std"]).all()
    holds = collapse["batch mean", "log_pi"]
    assert np.abs(holds["kl"] - 0.5).max() < 0.03


@pytest.fixture(scope="module")
def laws():
    return {law: seen for (_, law), seen in figures("laws", steps=6000, seeds=3).items()}


def test_the_order_of_the_laws_at_a_goal_in_reach(laws):
    in_band = {law: seen["in_band"].mean() for law, seen in laws.items()}
    log_std = {law: seen["log_std"].mean() for law, seen in laws.items()}
    assert in_band["log_pi"] > in_band["ziegler"] > in_band["symmetric"] > in_band["schulman"] > in_band["seed"]
    assert in_band["log_dual"] > in_band["symmetric"]
    assert in_band["log_pi"] > 0.95
    assert in_band["seed"] < 0.1
    assert log_std["schulman"] > log_std["symmetric"] > log_std["ziegler"] > log_std["log_dual"] > log_std["log_pi"]
    for law in ("ziegler", "log_dual", "log_pi"):
        assert np.abs(laws[law]["kl"] - 1).max() < 0.05, law
    assert (laws["seed"]["kl"] > 1.2).all()
    travel = {law: seen["travel"].mean() for law, seen in laws.items()}
    assert travel["schulman"] > travel["symmetric"] > travel["ziegler"] > 5 * travel["log_pi"]


def test_a_goal_out_of_reach_pins_the_laws_that_stop_at_1():
    seen = {
        law: f
        for (_, law), f in figures("infeasible", steps=4000, seeds=2, laws=("seed", "symmetric", "log_pi")).items()
    }
    for law in ("seed", "symmetric"):
        assert_array_equal(seen[law]["lam"], 1)
        assert (seen[law]["kl"] > 1.3 * 0.3).all()
    assert np.abs(seen["log_pi"]["kl"] - 0.3).max() < 0.03
    assert (seen["log_pi"]["lam"] > 1).all()


def test_a_law_of_tau_reaches_its_entropy():
    law = Arm("entropy", {"lam_law": "fixed", "tau_law": "target_entropy", "entropy_goal": 0.8, "entropy_rate": 0.05})
    out = simulate(law, SMALL, steps=1500, seeds=[0, 1])
    share = out.records["target_entropy"] / out.records["uniform_entropy"]
    assert np.abs(share[:, -300:].mean(-1) - 0.8).max() < 0.02
    assert (out.summary()["tau"] > 0.15).all()


def test_the_mpo_dual_reaches_its_epsilon():
    out = simulate(Arm("mpo", {"tau_law": "mpo_dual", "mpo_epsilon": 0.2}), SMALL, steps=2500, seeds=[0, 1])
    assert np.abs(out.records["prior_kl"][:, -500:].mean(-1) - 0.2).max() < 0.02


# ---- that it runs what it says -------------------------------------------------------------------------------------


def test_the_law_is_the_librarys(backend):
    """lam of a run is what the float64 loop makes of the KLs that the run was shown."""
    if backend.name != "cpu":
        pytest.skip("the simulator runs on the CPU")
    out = simulate(arm("log_pi", kl_target=0.2), SMALL, steps=400, seeds=[3])
    slots = {s.name: s.default for s in qpi.ISV.slot_info() if s.role == "param"}
    slots |= {"lam_law": "log_pi", "tau_law": "fixed", "kl_target": 0.2, **qpi.ISV.presets()["log_pi"].values}
    laws = Laws(slots, float(np.float32(0.1)), 0.1)
    for record in out.records[0]:
        laws.step(record["kl_ema"])
        assert record["lam"] == pytest.approx(laws.lam, rel=1e-5)
    assert out.records["kl_last"][0] == pytest.approx(out.kl[0], rel=1e-6)
    assert len(set(out.records["lam"][0].tolist())) > 300


def test_lam_moves_the_plant():
    """With the policy gradient off, a state's policy goes to its target, the faster the larger lam is."""
    still = dataclasses.replace(SMALL, advantage_scale=0, advantage_noise=0)
    ends = [
        simulate(Arm("fixed", {"lam_law": "fixed", "lam": lam, "lam_max": 4}), still, steps=800).kl[:, -1].max()
        for lam in (0.05, 0.4, 3.2)
    ]
    assert ends[0] > ends[1] > ends[2]
    assert ends[2] < 1e-3


def test_one_step_of_the_plant_by_hand():
    plant = Plant(states=2, actions=3, rows=1, rate=0.5, advantage_noise=0.0)
    table = Table(plant, [7])
    advantages, values = table._advantages.copy(), table._values.copy()
    batch = table.step(np.array([0.25]), np.array([0.1]))
    (state,) = np.flatnonzero(table._logits.any(-1))
    target = np.exp(values[state] / 0.1 - np.log(np.exp(values[state] / 0.1).sum()))
    kl = math.log(3) + (target * np.log(target)).sum()
    assert batch.kl[0] == pytest.approx(kl, rel=1e-5)
    assert batch.seen[0] == pytest.approx(kl, rel=1e-5)
    a = advantages[state]
    want = 0.5 * ((a - a.mean()) / 3 - 0.25 * (1 / 3 - target))
    np.testing.assert_allclose(table._logits[state], want, rtol=1e-5, atol=1e-7)
    assert not table._logits[1 - state].any()


def test_a_seed_is_a_seed():
    one = simulate(arm("seed"), SMALL, steps=50, seeds=[5])
    both = simulate(arm("seed"), SMALL, steps=50, seeds=[4, 5])
    assert_array_equal(one.records[0], both.records[1])
    assert_array_equal(one.kl[0], both.kl[1])
    assert (both.kl[0] != both.kl[1]).any()


@pytest.mark.parametrize("lag", [1, 7])
def test_lag_bias_and_noise_are_in_what_the_law_sees(lag):
    out = simulate(arm("fixed"), dataclasses.replace(SMALL, lag=lag, bias=2.0), steps=60, seeds=[0])
    assert out.records["kl_last"][0, lag:] == pytest.approx(2 * out.kl[0, :-lag], rel=1e-6)
    out = simulate(arm("fixed"), dataclasses.replace(SMALL, noise=0.5), steps=4000, seeds=[0])
    ratio = out.records["kl_last"][0] / out.kl[0]
    assert np.log(ratio).std() == pytest.approx(0.5, rel=0.05)
    assert ratio.mean() == pytest.approx(1, rel=0.05)


def test_drift_happens_at_its_step():
    with_drift = simulate(arm("fixed"), dataclasses.replace(SMALL, drift=30), steps=60, seeds=[0])
    without = simulate(arm("fixed"), SMALL, steps=60, seeds=[0])
    assert_array_equal(with_drift.kl[:, :30], without.kl[:, :30])
    assert (with_drift.kl[:, 30:] != without.kl[:, 30:]).all()


def test_the_figures_of_merit():
    out = simulate(arm("fixed", lam=0.2), SMALL, steps=40, seeds=[0, 1])
    records = out.records.copy()
    records["lam"] = np.exp(np.tile([0.0, 1.0], 20))
    records["kl_target"] = 1.0
    kl = np.tile([0.5, 1.0, 1.4, 1.6], 10) * np.ones((2, 1))
    seen = dataclasses.replace(out, records=records, kl=kl).summary(20)
    np.testing.assert_allclose(seen["log_std"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(seen["travel"], 1, rtol=1e-6)
    np.testing.assert_allclose(seen["in_band"], 0.5)
    np.testing.assert_allclose(seen["kl"], 1.125)
    assert simulate(arm("fixed"), SMALL, steps=1).summary()["travel"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"states": 1}, "states"),
        ({"rows": 0}, "rows"),
        ({"lag": -1}, "lag"),
        ({"noise": -0.1}, "noise"),
        ({"rate": math.nan}, "rate"),
        ({"bias": math.inf}, "bias"),
        ({"sensor": "row1"}, "sensor"),
    ],
)
def test_plants_that_cannot_be(values, name):
    with pytest.raises(ValueError, match=rf"^{name}"):
        Plant(**values)


def test_what_cannot_be_simulated():
    with pytest.raises(ValueError, match=r"^law: 'lag_pi'.*log_pi"):
        arm("lag_pi")
    with pytest.raises(ValueError, match="steps"):
        simulate(arm("seed"), steps=0)
    with pytest.raises(ValueError, match="seeds"):
        simulate(arm("seed"), seeds=[])
    with pytest.raises(ValueError, match="lam_up"):
        simulate(arm("seed", lam_up=0.5))


# ---- the command ---------------------------------------------------------------------------------------------------

FAST = ["--steps", "60", "--seeds", "2", "--rows", "4", "--processes", "1", "--quiet"]


def test_the_table(capsys):
    code = cli.main(["simulate", "log_pi", "fixed", *FAST, "--no-picture", "--kl-target", "0.3", "--set", "lam=0.2"])
    assert code == 0
    text = capsys.readouterr().out
    assert "KL goal 0.3 nat" in text
    lines = [line.split() for line in text.splitlines() if line.strip().startswith(("log_pi", "fixed"))]
    assert [line[0] for line in lines] == ["log_pi", "fixed"]
    assert "0.2" in lines[1]


def test_json_and_picture(capsys, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "laws.png"
    assert cli.main(["simulate", "seed", "log_dual", *FAST, "--json", "--out", str(path), "--lag", "2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["picture"] == str(path)
    assert [run["law"] for run in answer["runs"]] == ["seed", "log_dual"]
    again = simulate(arm("seed", kl_target=0.5), Plant(rows=4, lag=2), steps=60, seeds=[0, 1]).summary(10)
    assert answer["runs"][0]["figures"] == {name: values.tolist() for name, values in again.items()}
    assert image.imread(path).std() > 0.05


def test_a_study_at_another_length(capsys):
    options = ["--steps", "20", "--seeds", "1", "--quiet", "--no-picture", "--json"]
    assert cli.main(["simulate", "--study", "collapse", *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["steps"], answer["burn_in"], len(answer["runs"])) == (20, 3, 9)
    assert {run["plant"] for run in answer["runs"]} == set(STUDIES["collapse"].plants)


def test_a_picture_is_drawn_only_where_it_can_be(capsys, monkeypatch, tmp_path):
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["simulate", "seed", *FAST]) == 0
    assert not list(tmp_path.iterdir())
    assert cli.main(["simulate", "seed", *FAST, "--out", "x.png"]) == 1
    assert "qpi-distill[plot]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seeed"], "neither a preset nor a law"),
        (["--study", "laws", "seed"], "--study"),
        (["--study", "laws", "--rows", "3"], "--study"),
        (["seed", "--set", "lam_up"], "SLOT=X"),
        (["seed", "--set", "faults=1"], "SLOT=X"),
        (["seed", "--set", "lam_up=x"], "not a number"),
        (["seed", "--set", "lam_up=0.5"], "lam_up: 0.5 is outside"),
        (["seed", "--set", "tau_law=nothing"], "tau_law: 'nothing' is no law"),
        (["seed", "--sensor", "row1"], "invalid choice"),
        (["seed", "--steps", "5", "--burn-in", "5"], "--burn-in"),
        (["seed", "--out", "x.jpg"], ".png"),
        (["seed", "--out", "nowhere/x.png"], "no folder"),
        (["seed", "--out", "x.png", "--no-picture"], "--no-picture"),
    ],
)
def test_bad_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(["simulate", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
