"""The audit: what each rule finds and leaves alone, comments, baseline, exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

import qpi_distill as qpi
from qpi_distill import cli
from qpi_distill.audit import RULES, audit, findings_in, sources
from qpi_distill.audit.vocabulary import is_control, is_state, slot_for, words_of


def found(source, **options):
    """Return (rule, literal, slot) of each finding."""
    return [(f.rule, f.literal, f.slot) for f in findings_in(source, **options)[0]]


def in_kernel(body):
    return f"__global__ __launch_bounds__(256, 2) void k(float* isv, int n) {{ {body} }}"


# ---- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.id != "ISV900"], ids=lambda rule: rule.id)
def test_each_rule_finds_its_example_and_not_what_it_proposes(rule):
    define = rule.bad.startswith("#")
    assert rule.id in [name for name, _, _ in found(rule.bad if define else in_kernel(rule.bad))]
    assert found(in_kernel(rule.good)) == []


def test_the_example_of_what_cannot_be_followed():
    assert found(RULES["ISV900"].bad) == [("ISV900", "", None)]
    assert found(RULES["ISV900"].good) == []


# The constants of a controller and the floor of a temperature, as people write them down; the rest of such kernels
# (sizes, guards of divisions, reductions, sentinels) is not for slots.
CONTROLLER = """
// A factor of 1.2f and a floor of 0.05f.
#define LAMBDA_INDEX 486
#define KL_EMA_INDEX 488
#define FLOOR_LAMBDA 0.05f
#define LAMBDA_CEILING 1.0f
#define KL_TOLERANCE 3.0f
#define LAMBDA_RAMP 1.2f
#define LAMBDA_DECAY 0.998f
#define N_ACTIONS 11
extern "C" __global__ void controller(float* __restrict__ isv) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const float kl = isv[KL_EMA_INDEX];
  float lambda = isv[LAMBDA_INDEX];
  if (kl <= 0.0f || lambda <= 0.0f) return;
  if (kl > isv[491 /* target */] * KL_TOLERANCE) {
    lambda = fminf(LAMBDA_CEILING, lambda * LAMBDA_RAMP);
  }
  isv[LAMBDA_INDEX] = lambda;
}
"""
GRADIENT = """
__global__ void gradient(const float* q, const float* support, float* isv, float* grad, int B) {
  const float tau = isv[TAU_INDEX];
  __shared__ float s_target[11];
  float total = 0.0f, kl = 0.0f;
  #pragma unroll 4
  for (int i = 1; i < 11; ++i) {
    s_target[i] = expf(q[i * 21 + 3] / fmaxf(tau, 1e-3f));
    total += s_target[i];
  }
  const float inv = (total > 1e-9f) ? (1.0f / total) : (1.0f / (float)11);
  kl += s_target[0] * logf(s_target[0] / fmaxf(inv, 1e-12f));
  kl += __shfl_xor_sync(0xffffffff, kl, 16);
  const float alpha = isv[ALPHA_INDEX];
  isv[KL_EMA_INDEX] = (kl == 0.0f) ? kl : (1.0f - alpha) * isv[KL_EMA_INDEX] + alpha * kl;
}
"""


def test_what_a_careful_reader_finds():
    assert found(CONTROLLER) == [
        ("ISV004", "0.05f", "lam_min"),
        ("ISV004", "1.0f", "lam_max"),
        ("ISV004", "3.0f", "kl_tolerance"),
        ("ISV004", "1.2f", "lam_up"),
        ("ISV004", "0.998f", "lam_down"),
        ("ISV001", "491", "kl_target"),
    ]
    assert found(GRADIENT) == [("ISV002", "1e-3f", "tau_min")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("float x = isv[486];", [("ISV001", "486", "lam")]),
        ("float x = *(isv + 487);", [("ISV001", "487", "tau")]),
        ("float x = state->isv[0x1E6 + 1];", [("ISV001", "0x1E6", None)]),
        ("float x = isv_bus[7];", [("ISV001", "7", None)]),
        ("lambda *= 1.5f;", [("ISV002", "1.5f", None)]),
        ("lambda *= kl > x ? 1.2f : 0.998f;", [("ISV002", "1.2f", "lam_up"), ("ISV002", "0.998f", "lam_down")]),
        ("lambda = fminf(1.0f, lambda);", [("ISV002", "1.0f", "lam_max")]),
        ("x = fmaxf(isv[TAU], 1e-3f);", [("ISV002", "1e-3f", "tau_min")]),
        ("x = T(0.7) * lambda;", [("ISV002", "0.7", None)]),
        ("ema = 0.95f * ema + 0.05f * s;", [("ISV002", "0.95f", None), ("ISV002", "0.05f", None)]),
        ("x = CLAMP(lambda, 0.05f, 1.0f);", [("ISV002", "0.05f", "lam_min"), ("ISV002", "1.0f", "lam_max")]),
        ("smooth(&kl_ema, x, 0.03f);", [("ISV002", "0.03f", None)]),
        ("update_lambda(y, -x, 1.25f, 64);", [("ISV002", "1.25f", None)]),
        ("if (x > y && kl_ema < 0.3f) {}", [("ISV002", "0.3f", None)]),
        ("lam = lam * 1.\\\n25f;", [("ISV002", "1.25f", None)]),
        ("switch (m) { case 3: { tau *= 1.75f; } }", [("ISV002", "1.75f", None)]),
        ("y = x * 0.998f;", [("ISV003", "0.998f", "lam_down")]),
        ("const float kl_goal{0.07f};", [("ISV005", "0.07f", "kl_target")]),
        ("constexpr int kWarmup = 100;", [("ISV005", "100", None)]),
        ("constexpr float kFactor = 0.998f;", [("ISV004", "0.998f", "lam_down")]),
    ],
)
def test_found(line, expected):
    assert found(in_kernel(line)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "float x = isv[LAM_INDEX];",
        "float x = isv[layout.index[3]];",
        "float x = q[486] + lam_table[7];",
        "// lambda *= 1.2f",
        "/* isv[486] */",
        'const char* s = "lambda * 1.2f";',
        'const char* s = R"(lambda * 1.2f)";',
        "x = 2.0f * tau + 0.5f * kl - 1.0f;",
        "float tau_buffer[32]; x = tau_buffer[17];",
        "x = kl / fmaxf(total, 1e-12f);",
        "int i = ISV_BASE + 4; const int ISV_KL = 12;",
        "smooth(&value, x, 0.03f); launch(lambda, 256, 1.0f);",
        "k2<<<128, 64, 0, stream>>>(lambda, 33);",
        "x = kernel<11, 21>(lambda, 64);",
        "lambda = static_cast<float>(kl) * 1.0f;",
        "x = tau_bits & 0xff; y = kl_word << 3; z = lam_id % 7;",
        "for (int kl_i = 3; kl_i < 33; kl_i += 4) x += y;",
        "static_assert(sizeof(lam) == 4 * 1.5f);",
        "[[gnu::aligned(64)]] float lambda; alignas(16) float tau;",
        "float kl_weights[4] = {0.1f, 0.2f, 0.3f, 0.4f};",
        "y = x * 3.0f + 10.0f * w;",
        'asm volatile("" :: "n"(33), "r"(lambda));',
        "struct S { unsigned tau_flags : 3; enum { KL = 7, LAMBDA = 12 }; };",
    ],
)
def test_left_alone(line):
    assert found(in_kernel(line)) == []


def test_the_preprocessor():
    assert found("#if KL_VERSION >= 3\n#endif\n#include <lambda_1.2f>\n#error don't\n") == []
    assert found("#define UP(x) \\\n  (lambda * 1.21f)\n") == [("ISV002", "1.21f", None)]
    assert found("#define LAMBDA_UP (1.21f) // 3.0f\n") == [("ISV005", "1.21f", "lam_up")]
    assert found("#define LIST(X) X(lam_up, 1.2, 3.0) X(tau, 0.7, 5.0)\n") == []  # a table, not arithmetic
    assert found("#define TAU_SLOT 487\n#define KL_STATE 488\n") == []
    assert found("#define LAW_KL 2\n#define ALPHA_MODE 3\n") == []


def test_an_open_brace_in_a_branch_does_not_hide_the_rest():
    source = "#ifdef A\nvoid f(float lam) {\n#else\nvoid f(double lam) {\n#endif\n}\nvoid g(float lam) { lam *= 1.5f; }"
    assert found(source) == [("ISV002", "1.5f", None)]


def test_a_default_counts_only_where_the_state_is_at_hand():
    assert found("float f(float x) { return x * 0.998f; }") == []
    assert found("float f(float x, const float* isv) { return x * 0.998f; }") == [("ISV003", "0.998f", "lam_down")]
    assert found("float f(float x, const float* bus) { return x * bus[486]; }") == []
    assert found("float f(float x, const float* bus) { return x * bus[486]; }", buffers=["bus"]) == [
        ("ISV001", "486", "lam")
    ]


def test_a_comment_or_string_without_an_end_is_found():
    assert found("/* lambda") == [("ISV900", "", None)]
    assert found('x = "lambda;\n') == [("ISV900", "", None)]


# ---- names -----------------------------------------------------------------------------------------------------------


def test_words_of_names():
    assert words_of("LAMBDA_RAMP_RATE") == ["lambda", "ramp", "rate"]
    assert words_of("kKlTarget2") == ["k", "kl", "target", "2"]
    assert is_control("klTarget")
    assert not is_control("KL_TARGET_INDEX")
    assert not is_control("lamp")
    assert is_state("d_isv")
    assert not is_state("isv_size")
    assert is_state("bus", ["bus"])


def test_every_parameter_is_suggested_for_its_own_name_and_default():
    for slot in qpi.ISV.slot_info():
        if slot.role == "param" and slot.default:
            assert slot_for([slot.name], slot.default).name == slot.name


# ---- comments --------------------------------------------------------------------------------------------------------

STEP = "void f(float lam) {{\n  {}\n  lam *= 1.5f; {}\n  lam *= 1.7f;\n}}\n"


@pytest.mark.parametrize(
    ("above", "beside", "left", "allowed"),
    [
        ("", "", ["1.5f", "1.7f"], 0),
        ("", "// qpi-audit: allow ISV002 measured", ["1.7f"], 1),
        ("", "/* qpi-audit: allow */", ["1.7f"], 1),
        ("// qpi-audit: allow ISV001, ISV002 because", "", ["1.7f"], 1),
        ("// qpi-audit: allow ISV003", "", ["1.5f", "1.7f"], 0),
        ("// qpi-audit: off", "", [], 2),
        ("// qpi-audit: off", "// qpi-audit: on", ["1.7f"], 1),
        ("// qpi-audit: allow-file ISV002", "", [], 2),
    ],
)
def test_comments_allow(above, beside, left, allowed):
    findings, by_comment = findings_in(STEP.format(above, beside))
    assert [f.literal for f in findings] == left
    assert by_comment == allowed


@pytest.mark.parametrize("comment", ["// qpi-audit: allow ISV777", "// qpi-audit: ignore ISV002", "// qpi-audit:"])
def test_comments_that_are_not_understood_are_found(comment):
    findings, allowed = findings_in(comment)
    assert [f.rule for f in findings] == ["ISV900"]
    assert allowed == 0


# ---- files and baseline ----------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "src/.hidden").mkdir(parents=True)
    (tmp_path / "src/a.cu").write_text(CONTROLLER)
    (tmp_path / "src/b.cuh").write_bytes(b"// \xff\nvoid f(float lam) { lam *= 1.5f; }\n")
    (tmp_path / "src/.hidden/c.cu").write_text(CONTROLLER)
    (tmp_path / "src/notes.txt").write_text(CONTROLLER)
    return tmp_path


def run(capsys, *args):
    code = cli.main(["isv", "audit", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_sources_are_each_there_once(tree):
    files = sources([tree, tree / "src/notes.txt", tree / "src/a.cu"])
    assert [path.name for path in files] == ["a.cu", "b.cuh", "notes.txt"]
    assert [path.name for path in sources([tree], ["*/b.*"])] == ["a.cu"]
    assert [f.finding.rule for f in audit(files[1:2]).found] == ["ISV002"]


def test_exit_codes_and_text(tree, capsys):
    code, out, err = run(capsys, tree / "src/a.cu")
    assert code == 1
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith(f"{tree}/src/a.cu:5:22: ISV004 FLOOR_LAMBDA = 0.05f duplicates")
    assert "\x1b" not in out
    assert err == "1 files, 6 findings\n"
    code, out, _ = run(capsys, tree / "src/a.cu", "--ignore", "ISV004", "--ignore", "isv001")
    assert (code, out) == (0, "")


def test_json(tree, capsys):
    code, out, err = run(capsys, tree, "--json")
    answer = json.loads(out)
    assert (code, err) == (1, "")
    assert (answer["files"], answer["findings"], answer["known"], answer["allowed"]) == (2, 7, 0, 0)
    first = answer["found"][0]
    assert (first["rule"], first["line"], first["slot"]) == ("ISV004", 5, "lam_min")
    assert first["code"] == "# define FLOOR_LAMBDA 0.05f"


def test_baseline(tree, capsys, monkeypatch):
    baseline = tree / "known.json"
    code, out, _ = run(capsys, tree / "src", "--write-baseline", baseline)
    assert (code, out) == (0, "")
    assert str(tree) not in baseline.read_text()
    assert run(capsys, tree / "src", "--baseline", baseline)[:2] == (0, "")
    # From elsewhere, after lines have moved and white space has changed.
    source = tree / "src/a.cu"
    source.write_text("\n// new\n\n" + source.read_text().replace("#define KL_TOLERANCE 3", "#define  KL_TOLERANCE\t3"))
    monkeypatch.chdir(tree / "src")
    assert run(capsys, "a.cu", "b.cuh", "--baseline", "../known.json")[0] == 0
    # A second of a kind is new, and one that is gone is told.
    source.write_text(source.read_text().replace("#define LAMBDA_RAMP 1.2f", "#define KL_TOLERANCE 3.0f"))
    code, out, err = run(capsys, ".", "--baseline", "../known.json")
    assert code == 1
    assert out.count("\n") == 1
    assert "KL_TOLERANCE" in out
    assert "6 known" in err
    assert "1 of the baseline are gone" in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "argument PATH: none given"),
        (["no/such"], "argument PATH: 'no/such' does not exist; expected a file or a folder"),
        (["."], "argument PATH: there is no C, C++ or CUDA source in ."),
        (["x.cu", "--ignore", "ISV7"], "argument --ignore: 'ISV7' is not one of ISV001"),
        (["x.cu", "--baseline", "none.json"], "argument --baseline: 'none.json': No such file"),
        (["x.cu", "--baseline", "x.cu"], "argument --baseline: 'x.cu' is no JSON"),
        (["x.cu", "--baseline", "other.json"], "argument --baseline: 'other.json' is no baseline of format"),
        (["x.cu", "--baseline", "entry.json"], "argument --baseline: 'entry.json' has an entry that is none"),
        (["x.cu", "--write-baseline", "no/such.json"], "argument --write-baseline: 'no/such.json': No such file"),
        (["x.cu", "--baseline", "a", "--write-baseline", "b"], "not allowed with argument"),
    ],
)
def test_bad_arguments(args, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if args and args[0] == "x.cu":
        (tmp_path / "x.cu").write_text("void f();\n")
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "entry.json").write_text('{"format": "qpi_distill.audit/1", "findings": [{"rule": "ISV001"}]}')
    with pytest.raises(SystemExit) as stop:
        cli.main(["isv", "audit", *args])
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.out == ""
    assert says in captured.err


def test_rules_are_documented(capsys):
    assert cli.main(["isv", "audit", "--rules"]) == 0
    text = capsys.readouterr().out
    assert cli.main(["isv", "audit", "--rules", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["rules"]
    assert [rule["id"] for rule in listed] == list(RULES)
    for rule in RULES.values():
        assert rule.id in text
        assert rule.bad in text
        assert all(rule)


def test_sources_that_compile_are_followed(tmp_path):
    """Whatever a compiler takes, the audit goes through: here the system's own headers."""
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    (tmp_path / "x.cpp").write_text("#include <algorithm>\n#include <regex>\n")
    done = subprocess.run([compiler, "-M", "x.cpp"], cwd=tmp_path, capture_output=True, text=True, check=True)
    headers = sources([tmp_path / p for p in done.stdout.replace("\\\n", " ").split()[1:]])
    report = audit(headers[:120])
    assert len(report.files) == min(len(headers), 120) > 50
    assert len(report.found) <= 5  # there is no control loop in them
