"""The demo: its mathematics against finite differences and brute force, its loop on every environment."""

from __future__ import annotations

import importlib.util
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from qpi_distill.demo import agent, critic, envs, jobs, networks, ppo, report, terminal
from qpi_distill.demo.config import ARMS, PRESETS, Config, DemoError, preset
from qpi_distill.demo.distill import HostTerm, make_term

# Box2D's bindings and pygame warn when they are imported
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

PACKAGES = {"MinAtar/Breakout": ["minatar"], "CartPole-v1": ["gymnasium"], "LunarLander-v3": ["gymnasium", "Box2D"]}


def need(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def tiny(env="CartPole-v1", **changes):
    return preset(env, **{"envs": 4, "horizon": 32, "hidden": (16,), "steps": 640, **changes})


def slopes(f, x, eps=1e-6):
    """Gradient of a scalar function by central differences, in place of every element of x."""
    result = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        keep = x[i]
        x[i] = keep + eps
        above = f()
        x[i] = keep - eps
        below = f()
        x[i] = keep
        result[i] = (above - below) / (2 * eps)
    return result


# ---- network and optimiser -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(7,), (6, 5), ()])
def test_network_gradient(hidden):
    rng = np.random.default_rng(1)
    net = networks.Network(4, hidden, {"a": (3, 1.0), "b": (2, 0.5)}, rng, np.float64)
    net.theta += 0.1 * rng.standard_normal(net.theta.size)
    x = rng.standard_normal((9, 4))
    want = {"a": rng.standard_normal((9, 3)), "b": rng.standard_normal((9, 2))}

    def loss():
        features = net.trunk(x)[-1]
        return sum(0.5 * ((net.head(name, features) - target) ** 2).sum() for name, target in want.items())

    activations = net.trunk(x)
    net.backward(activations, {name: net.head(name, activations[-1]) - target for name, target in want.items()})
    np.testing.assert_allclose(net.grad, slopes(loss, net.theta), rtol=1e-6, atol=1e-6)


def test_initial_weights_are_orthogonal():
    for rows, cols in ((5, 3), (3, 5)):
        w = networks.orthogonal(np.random.default_rng(0), rows, cols, 2.0)
        gram = w.T @ w if rows >= cols else w @ w.T
        np.testing.assert_allclose(gram, 4.0 * np.eye(3), atol=1e-12)


def test_clip_norm():
    g = np.array([3.0, 4.0])
    assert networks.clip_norm(g, 10.0) == 5.0
    np.testing.assert_array_equal(g, [3.0, 4.0])
    assert networks.clip_norm(g, 1.0) == 5.0
    np.testing.assert_allclose(g, [0.6, 0.8])


def test_adam_is_the_published_one():
    rng = np.random.default_rng(2)
    theta = rng.standard_normal(5)
    want, m, v = theta.copy(), np.zeros(5), np.zeros(5)
    adam = networks.Adam(theta)
    for t in range(1, 8):
        g = rng.standard_normal(5)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        want -= 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-5)
        adam.step(g, 0.01)
    np.testing.assert_allclose(theta, want, rtol=1e-12)


# ---- PPO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [1, 3, 6])
def test_policy_gradient(actions):
    rng = np.random.default_rng(3)
    rows = 40
    logits = rng.standard_normal((rows, actions))
    taken = rng.integers(actions, size=rows)
    # ratios on both sides of both clamps, with advantages of both signs
    old = ppo.log_softmax(logits)[np.arange(rows), taken] + rng.uniform(-0.6, 0.6, rows)
    advantage = rng.standard_normal(rows)

    def loss():
        log_p = np.log(critic.softmax(logits))
        r = np.exp(log_p[np.arange(rows), taken] - old)
        surrogate = np.minimum(r * advantage, np.clip(r, 0.8, 1.2) * advantage).mean()
        return -surrogate - 0.03 * -(np.exp(log_p) * log_p).sum(-1).mean()

    grad = np.full((rows, actions), np.nan)
    value, entropy = ppo.policy_grad(logits, taken, old, advantage, clip=0.2, entropy_coef=0.03, out=grad)
    assert value == pytest.approx(loss())
    assert 0 <= entropy <= math.log(actions) + 1e-12
    np.testing.assert_allclose(grad, slopes(loss, logits), rtol=1e-5, atol=1e-8)


def test_value_gradient():
    rng = np.random.default_rng(4)
    values, returns = rng.standard_normal((2, 9))
    loss, grad = ppo.value_grad(values, returns)
    assert loss == pytest.approx(0.5 * ((values - returns) ** 2).mean())
    np.testing.assert_allclose(grad, slopes(lambda: ppo.value_grad(values, returns)[0], values), rtol=1e-6)


def episode_ends(rng, shape):
    """Random ends of episodes: (terminated, done)."""
    terminated = rng.random(shape) < 0.15
    return terminated, terminated | (rng.random(shape) < 0.15)


def test_advantages_by_definition():
    rng = np.random.default_rng(5)
    steps, count, gamma, lam = 12, 4, 0.9, 0.8
    rewards, values, next_values = rng.standard_normal((3, steps, count))
    terminated, done = episode_ends(rng, (steps, count))
    got = ppo.advantages(rewards, values, next_values, terminated, done, gamma, lam)
    for n in range(count):
        for t in range(steps):
            want, factor = 0.0, 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if terminated[k, n] else gamma * next_values[k, n]
                want += factor * (rewards[k, n] + bootstrap - values[k, n])
                factor *= gamma * lam
                if done[k, n]:
                    break
            assert got[t, n] == pytest.approx(want)


def test_sample_follows_the_policy():
    logits = np.log(np.tile([0.5, 0.2, 0.3], (20_000, 1))).astype(np.float32)
    actions = ppo.sample(np.random.default_rng(6), logits)
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / 20_000, [0.5, 0.2, 0.3], atol=0.015)
    certain = np.array([[0.0, 200.0], [200.0, 0.0]], np.float32)
    np.testing.assert_array_equal(ppo.sample(np.random.default_rng(0), certain), [1, 0])


# ---- critic ----------------------------------------------------------------------------------------------------------


def project_slowly(support, shift, scale, mass):
    """One row, atom by atom."""
    result = np.zeros(len(support))
    step = (support[-1] - support[0]) / (len(support) - 1)
    for z, m in zip(support, mass, strict=True):
        place = (min(max(shift + scale * z, support[0]), support[-1]) - support[0]) / step
        low = min(math.floor(place), len(support) - 2)
        result[low] += m * (low + 1 - place)
        result[low + 1] += m * (place - low)
    return result


@pytest.mark.parametrize("atoms", [2, 5, 21])
def test_projection(atoms):
    rng = np.random.default_rng(7)
    support = np.linspace(-2.0, 3.0, atoms)
    mass = rng.dirichlet(np.ones(atoms), 60)
    # some leave the support, some land on an atom
    shift = np.concatenate([rng.uniform(-6, 6, 50), rng.choice(support, 10)])
    scale = np.concatenate([rng.uniform(0, 1, 50), np.zeros(10)])
    got = critic.project(support, shift, scale, mass)
    want = [project_slowly(support, *row) for row in zip(shift, scale, mass, strict=True)]
    np.testing.assert_allclose(got, want, atol=1e-12)
    np.testing.assert_allclose(got.sum(-1), 1.0)


def test_projection_of_nothing_new_is_the_identity():
    support = np.linspace(-1, 9, 21, dtype=np.float32)
    mass = np.random.default_rng(8).dirichlet(np.ones(21), 9).astype(np.float32)
    got = critic.project(support, np.zeros(9, np.float32), np.ones(9, np.float32), mass)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, mass, atol=1e-6)


def test_lambda_distributions():
    rng = np.random.default_rng(9)
    steps, count, gamma, lam = 10, 3, 0.9, 0.7
    support = np.linspace(-40.0, 40.0, 31)
    rewards = rng.standard_normal((steps, count))
    terminated, done = episode_ends(rng, (steps, count))
    next_mass = rng.dirichlet(np.ones(31), (steps, count))
    got = critic.lambda_distributions(support, rewards, terminated, done, next_mass, gamma, lam)
    for n in range(count):
        later, later_mean = next_mass[-1, n], next_mass[-1, n] @ support
        for t in reversed(range(steps)):
            keep = 0.0 if done[t, n] else lam
            mixture = (1 - keep) * next_mass[t, n] + keep * later
            discount = 0.0 if terminated[t, n] else gamma
            later = project_slowly(support, rewards[t, n], discount, mixture)
            np.testing.assert_allclose(got[t, n], later, atol=1e-12)
            # on a support that is wide enough the mean is the scalar λ-return
            later_mean = rewards[t, n] + discount * ((1 - keep) * next_mass[t, n] @ support + keep * later_mean)
            assert got[t, n] @ support == pytest.approx(later_mean)


def test_critic_gradient():
    rng = np.random.default_rng(10)
    q = rng.standard_normal((6, 3, 5))
    taken = rng.integers(3, size=6)
    target = rng.dirichlet(np.ones(5), 6)
    loss, grad = critic.cross_entropy_grad(q, taken, target)
    p = critic.softmax(q)[np.arange(6), taken]
    assert loss == pytest.approx(-(target * np.log(p)).sum() / 6)
    want = slopes(lambda: critic.cross_entropy_grad(q, taken, target)[0], q)
    np.testing.assert_allclose(grad, want, rtol=1e-5, atol=1e-8)


# ---- the library in the loop -----------------------------------------------------------------------------------------


def reference_term(q, pi, support, lam, tau, std):
    """λ · (π − target) / B in float64, with the target's values divided by `std`."""
    expected = critic.softmax(q.astype(float)) @ support.astype(float)
    return lam * (critic.softmax(pi.astype(float)) - critic.softmax(expected / std / tau)) / len(q)


def test_the_distiller_adds_to_the_gradient_that_is_there():
    rng = np.random.default_rng(11)
    config = tiny("MinAtar/Breakout")
    support = np.linspace(config.q_low, config.q_high, config.atoms, dtype=np.float32)
    term = HostTerm(config, 3, support)
    state = None
    for _ in range(2):
        q = rng.standard_normal((config.minibatch, 3, config.atoms)).astype(np.float32)
        pi = rng.standard_normal((config.minibatch, 3)).astype(np.float32)
        written = rng.standard_normal((config.minibatch, 3)).astype(np.float32)
        expected = critic.softmax(q.astype(float)) @ support.astype(float)
        if state is None:
            # before the first commit each row has its own scale, afterwards the running one holds
            lam, std = config.lam, np.maximum(expected.std(axis=-1, keepdims=True), config.min_std)
        else:
            lam, std = state.lam, max(state.value_std, config.min_std)
        grad = written.copy()
        term.add(q, pi, grad)
        want = written + reference_term(q, pi, support, lam, config.tau, std)
        np.testing.assert_allclose(grad, want, rtol=2e-6, atol=2e-6)
        first, state = state is None, term.commit()
        if first:
            assert state.value_std == pytest.approx(math.sqrt(expected.var(axis=-1).mean()), rel=1e-5)
    assert state.observations == 2


def test_ppo_arm_is_ppo(monkeypatch):
    need("gymnasium")
    config = tiny(arm="ppo")
    with_term = agent.Agent(config)
    with_term.train()
    monkeypatch.setattr(HostTerm, "add", lambda self, q_logits, pi_logits, pi_grad: None)
    without = agent.Agent(config)
    without.train()
    np.testing.assert_array_equal(with_term.net.theta, without.net.theta)


def test_shuffled_q_keeps_each_rows_values():
    need("gymnasium")
    plain, shuffled = agent.Agent(tiny()), agent.Agent(tiny(arm="shuffled"))
    q = np.random.default_rng(12).standard_normal((500, 2, 21)).astype(np.float32)
    before = q.copy()
    assert plain.shown(q) is q
    shown = shuffled.shown(q)
    np.testing.assert_array_equal(q, before)
    np.testing.assert_array_equal(np.sort(shown, axis=1), np.sort(q, axis=1))
    moved = np.mean((shown != q).any(axis=(1, 2)))
    assert 0.4 < moved < 0.6


def test_lam_path_is_replayed():
    need("gymnasium")
    path = [0.08, 0.12, 0.2, 0.1, 0.06]
    run = agent.train(tiny(arm="shuffled"), lam_path=path)
    np.testing.assert_allclose(run.history["lam"], path, rtol=1e-6)


# ---- environments ----------------------------------------------------------------------------------------------------


class Counting:
    """Observes its step count; ends after 3 steps, by turns in a terminal state and at a time limit."""

    features, actions = 1, 2

    def __init__(self):
        self.episode, self.count = -1, 0

    def reset(self, out):
        self.episode += 1
        self.count = 0
        out[:] = 0

    def step(self, action, out):
        self.count += 1
        out[:] = self.count
        over = self.count == 3
        return 1.0 + action, over and self.episode % 2 == 0, over and self.episode % 2 == 1


def test_runner_restarts_and_keeps_what_a_time_limit_cut_off(monkeypatch):
    monkeypatch.setattr(envs, "make", lambda name, seed: Counting())
    runner = envs.Runner("any", 2, 0)
    steps = [runner.step(np.array([0, 1])) for _ in range(6)]
    assert [s.terminated.tolist() for s in steps] == [[i == 2] * 2 for i in range(6)]
    assert [s.truncated.tolist() for s in steps] == [[i == 5] * 2 for i in range(6)]
    assert [sorted(s.cut_off) for s in steps] == [[0, 1] if i == 5 else [] for i in range(6)]
    assert steps[5].cut_off[0] == 3
    assert runner.observations.tolist() == [[0], [0]]
    assert runner.returns == [3.0, 6.0, 3.0, 6.0]


def test_time_limits_bootstrap_from_the_last_observation(monkeypatch):
    monkeypatch.setattr(envs, "make", lambda name, seed: Counting())
    learner = agent.Agent(tiny(envs=2, horizon=6, minibatches=1, trace=0.0, gamma=0.5, reward_scale=1.0))
    roll = learner.collect()
    values = learner.evaluate(roll.features, roll.logits)[0]
    _, returns, _, _ = learner.targets(roll)
    last = learner.net.head("value", learner.net.trunk(np.array([[3.0]], np.float32))[-1])[0, 0]
    np.testing.assert_allclose(returns[2], roll.rewards[2], rtol=1e-5)
    np.testing.assert_allclose(returns[5], roll.rewards[5] + 0.5 * last, rtol=1e-5)
    np.testing.assert_allclose(returns[0], roll.rewards[0] + 0.5 * values[1], rtol=1e-5)


def test_minatar_is_seeded_and_has_the_minimal_actions():
    need("minatar")
    runners = [envs.Runner("MinAtar/Breakout", 3, seed) for seed in (5, 5, 6)]
    assert (runners[0].features, runners[0].actions) == (400, 3)
    rng = np.random.default_rng(0)
    trails = [[] for _ in runners]
    for _ in range(60):
        actions = rng.integers(3, size=3)
        for runner, trail in zip(runners, trails, strict=True):
            runner.step(actions)
            trail.append(runner.observations.copy())
    assert np.array_equal(trails[0], trails[1])
    assert not np.array_equal(trails[0], trails[2])


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minatar", None)
    with pytest.raises(DemoError, match=r'pip install "qpi-distill\[demo\]"'):
        envs.make("MinAtar/Breakout", 0)


# ---- the loop --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", PRESETS)
def test_short_run(env):
    need(*PACKAGES[env])
    config = preset(env, steps=3000, envs=8, horizon=64)
    learner = agent.Agent(config)
    before = learner.net.theta.copy()
    run = learner.train()
    h = {name: np.array(values) for name, values in run.history.items()}
    assert all(len(values) == config.iterations == 6 for values in h.values())
    assert h["steps"][-1] == 6 * 512
    for name, values in h.items():
        assert np.isfinite(values[1:]).all(), name
    assert not np.isnan(learner.net.theta).any()
    assert not np.array_equal(learner.net.theta, before)
    low, high = np.float32(config.lam_min), np.float32(config.lam_max)
    assert ((low <= h["lam"]) & (h["lam"] <= high)).all()
    assert (h["kl"] >= 0).all()
    for name in ("target_entropy", "policy_entropy"):
        assert ((h[name] >= 0) & (h[name] <= math.log(run.actions) + 1e-6)).all()
    for name in ("agreement", "pi_at_qstar"):
        assert ((h[name] >= 0) & (h[name] <= 1)).all()
    assert sum(run.reasons.values()) == config.iterations
    assert run.episodes > 0
    assert math.isfinite(run.first_return)


@pytest.mark.parametrize("arm", ARMS)
def test_a_seed_gives_the_same_run(arm):
    need("gymnasium")
    first, again, other = (agent.train(tiny(arm=arm, seed=seed)) for seed in (3, 3, 4))
    assert first.history == again.history
    assert first.history != other.history


class Echo:
    """Pays 1 for repeating the bit that it shows; episodes of 8 steps."""

    features, actions = 2, 2

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def show(self, out):
        self.bit = int(self.rng.integers(2))
        out[:] = [self.bit, 1 - self.bit]

    def reset(self, out):
        self.count = 0
        self.show(out)

    def step(self, action, out):
        reward = float(action == self.bit)
        self.count += 1
        self.show(out)
        return reward, self.count == 8, False


@pytest.mark.parametrize("arm", ["ppo", "distilled"])
def test_learns(arm, monkeypatch):
    monkeypatch.setattr(envs, "make", lambda name, seed: Echo(seed))
    run = agent.train(tiny(arm=arm, steps=6000, gamma=0.5, rate=1e-2, q_low=-1.0, q_high=3.0, reward_scale=1.0))
    assert run.history["episode_return"][0] < 5
    assert run.final("episode_return") > 7.5
    # the critic has learned it too, and the policy agrees with it
    assert run.final("agreement") > 0.95


# ---- runs in workers, and what is shown ------------------------------------------------------------------------------


def test_comparison_lists_three_arms():
    work = jobs.comparison(tiny(seed=2), 5)
    assert [[(c.arm, c.seed) for c in job] for job in work] == [
        *([("distilled", s), ("shuffled", s)] for s in range(2, 7)),
        *([("ppo", s)] for s in range(2, 7)),
    ]


def test_runs_in_workers_match_runs_here():
    need("gymnasium")
    config = tiny()
    shown = terminal.Silent(3)
    distilled, shuffled, plain = jobs.run_jobs(
        [[config, replace(config, arm="shuffled")], [replace(config, arm="ppo")]], 2, shown
    )
    assert shown.finished == 3
    assert [r.config.arm for r in (distilled, shuffled, plain)] == ["distilled", "shuffled", "ppo"]
    assert shuffled.history["lam"] == distilled.history["lam"]
    assert set(plain.history["lam"]) == {0.0}
    here = agent.train(config)
    np.testing.assert_allclose(distilled.history["kl"], here.history["kl"], rtol=1e-3)


def test_worker_failure_is_reported():
    need("gymnasium")
    with pytest.raises(DemoError, match="NoSuchEnvironment"):
        jobs.run_jobs([[replace(tiny(), env="NoSuchEnvironment-v0")]], 1, terminal.Silent(1))


@pytest.fixture(scope="module")
def three_runs():
    need("gymnasium")
    return [agent.train(tiny(arm=arm, seed=seed)) for seed in range(2) for arm in ARMS]


def test_pictures(three_runs, tmp_path):
    need("matplotlib")
    from qpi_distill.demo import plots

    plots.draw_run(three_runs[1], tmp_path / "run.png")
    plots.draw_comparison(three_runs, tmp_path / "all.png")
    for name in ("run.png", "all.png"):
        data = (tmp_path / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(data) > 20_000


def test_report_shows_every_seed_and_claims_nothing(three_runs, capsys):
    report.show_run(three_runs[1])
    report.show_comparison(three_runs)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "seed 0" in text
    assert "seed 1" in text
    assert "proves nothing about benefit" in text
    for arm in ARMS:
        assert arm in text


def test_json_has_no_nan(three_runs):
    import json

    runs = [replace_history(three_runs[0], "episode_return", math.nan)]
    text = json.dumps(report.as_json("run", runs, None), allow_nan=False)
    assert json.loads(text)["runs"][0]["history"]["episode_return"][0] is None


def replace_history(run, name, value):
    return replace(run, history={**run.history, name: [value] * len(run.history[name])})


NUMBERS = {"episode_return": 1.0, "lam": 0.1, "kl_ema": 0.2, "agreement": 0.5}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_no_progress_without_a_terminal():
    stream = io.StringIO()
    with terminal.progress(1, quiet=False, stream=stream) as display:
        display.update("run", 0.5, NUMBERS)
        display.finish("run", NUMBERS, 2.0)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("refusal", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_plain_progress_on_a_terminal_that_refuses_more(runs, refusal, monkeypatch):
    monkeypatch.setenv(*refusal)
    stream = Terminal()
    assert not terminal.decorated(stream)
    with terminal.progress(runs, quiet=False, stream=stream) as display:
        for i in range(runs):
            for share in np.linspace(0.05, 1, 20):
                display.update(f"run {i}", float(share), NUMBERS)
            display.finish(f"run {i}", NUMBERS, 2.0)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(text.splitlines()) == (10 if runs == 1 else 3)
    assert "λ 0.100" in text


def test_an_empty_no_color_refuses_nothing(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.lively(Terminal())
    assert not terminal.lively(io.StringIO())


def test_progress_with_rich():
    need("rich")
    stream = io.StringIO()
    with terminal.Bars(2, stream) as display:
        display.update("one", 0.5, NUMBERS)
        display.finish("one", NUMBERS, 2.0)
    assert "agreement  50%" in stream.getvalue()


def test_quiet_shows_nothing():
    stream = io.StringIO()
    with terminal.progress(2, quiet=True, stream=stream) as display:
        display.update("one", 0.5, NUMBERS)
        display.finish("one", NUMBERS, 2.0)
    assert stream.getvalue() == ""


def test_presets_are_whole():
    for env in PRESETS:
        config = preset(env)
        assert config.batch % config.minibatches == 0
        assert config.lam_min <= config.lam <= config.lam_max
    assert preset("CartPole-v1", lam=0.9).lam_max == 0.9
    assert preset("CartPole-v1", lam=0.01).lam_min == 0.01
    assert preset("CartPole-v1", lam=0.0).lam_min == Config.lam_min
    assert Config(steps=1).iterations == 1
    assert Config(steps=Config().batch + 1).iterations == 2


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def test_no_gpu_is_reported(monkeypatch):
    import qpi_distill as qpi

    if qpi.info()["gpu"]["usable"]:
        pytest.skip("there is a GPU")
    with pytest.raises(DemoError, match="--device cuda"):
        make_term(tiny(device="cuda"), 3, np.linspace(-1, 1, 5, dtype=np.float32))


@pytest.mark.gpu
def test_gpu_term_matches_the_cpu():
    rng = np.random.default_rng(13)
    config = tiny("MinAtar/Breakout")
    support = np.linspace(config.q_low, config.q_high, config.atoms, dtype=np.float32)
    here, there = (make_term(replace(config, device=device), 3, support) for device in ("cpu", "cuda"))
    for _ in range(4):
        q = rng.standard_normal((config.minibatch, 3, config.atoms)).astype(np.float32)
        pi = rng.standard_normal((config.minibatch, 3)).astype(np.float32)
        grads = [np.full((config.minibatch, 3), 0.25, np.float32) for _ in range(2)]
        here.add(q, pi, grads[0])
        there.add(q, pi, grads[1])
        np.testing.assert_allclose(grads[1], grads[0], rtol=2e-6, atol=2e-6)
        one, two = here.commit(), there.commit()
        for name in ("lam", "kl_ema", "value_std"):
            assert two[name] == pytest.approx(one[name], rel=1e-5)
    assert there.set_lam(0.2).lam == here.set_lam(0.2).lam


@pytest.mark.gpu
def test_gpu_run():
    need("gymnasium")
    here, there = (agent.train(tiny(device=device)) for device in ("cpu", "cuda"))
    # the first iteration; later ones may part by an action that rounding tips over
    for name in ("kl", "lam", "value_std", "episode_return"):
        assert there.history[name][0] == pytest.approx(here.history[name][0], rel=1e-3, nan_ok=True)
    assert np.isfinite(there.history["kl"]).all()
