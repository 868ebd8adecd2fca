"""The tokenizer of the audit: what it tells apart, and that it neither loses a character nor fails on one."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qpi_distill.audit.numbers import number_of
from qpi_distill.audit.rules import findings_in
from qpi_distill.audit.tokens import tokenize

#: Tokens that stay what they are whatever is beside them, given a space between them.
TOKENS = {
    "name": ["lam", "_x1", "isv", "lambda", "größe", "__shared__", "a$b"],
    "number": ["0", "1.5f", ".5", "1e-3f", "0x1F", "1'000'000", "0x1.8p-3", "3.f", "0b1'01u", "1.0_lam", "9ull"],
    "string": ['"a"', '""', r'"a\"b"', 'u8"x"', '"// no comment"', 'R"(a)"', 'R"x(" )" )x"', 'LR"(a\nb\\\nc)"'],
    "char": ["'a'", r"'\''", "L'x'", "'\"'"],
    "punct": ["<<<", ">>>", "<=>", "->*", "::", "+=", "{", "}", "#", "##", "&&", "%", "..."],
    "comment": ["/* a */", '/* 1.2f\n"*/', "/**/"],
}
token = st.sampled_from([(kind, text) for kind, texts in TOKENS.items() for text in texts])
gap = st.sampled_from([" ", "\n", "\t ", "\\\n ", " \\\r\n", "\r\n", " // 0.998f 'quote\n"])


def significant(tokens):
    return [(t.kind, t.text) for t in tokens if t.kind not in ("space", "newline") and not t.text.startswith("//")]


@given(st.lists(st.tuples(token, gap)))
def test_tokens_put_together_come_apart_again(pieces):
    source = "".join(text + between for (_, text), between in pieces)
    tokens = tokenize(source)
    assert significant(tokens) == [piece for piece, _ in pieces]
    assert "".join(t.raw for t in tokens) == source
    assert all(t.closed for t in tokens)


@given(st.lists(st.tuples(token, gap), min_size=1), st.data())
def test_continuations_between_any_two_characters_change_nothing(pieces, data):
    """Translation phase 2 comes before tokens do; raw strings undo it, so they are left out here."""
    pieces = [(p, g) for p, g in pieces if "R" not in p[1][:2] and "\\" not in p[1] + g]
    source = "".join(text + between for (_, text), between in pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(source)), max_size=6)), reverse=True)
    # Not into a line's end of two characters.
    spliced = source
    for cut in cuts:
        if source[cut - 1 : cut + 1] != "\r\n":
            spliced = f"{spliced[:cut]}\\\n{spliced[cut:]}"
    assert significant(tokenize(spliced)) == significant(tokenize(source))
    assert "".join(t.raw for t in tokenize(spliced)) == spliced


@given(st.text())
@example('R"(')
@example("/*")
@example('"\\')
@example("'\\\n")
@example("\\\n\\\r\n")
@example("isv[")
@example("}}}>>>)]")
@example("#define")
@example("#define F(")
@example("0x 1e 1'' 1e+ .. 08 0b2 1.2.3")
@example("// qpi-audit: allow ISV999")
def test_any_text_goes_through(source):
    tokens = tokenize(source)
    assert "".join(t.raw for t in tokens) == source
    assert all(t.raw for t in tokens)
    findings_in(source)


alphabet = st.sampled_from(
    [
        *'(){}[]<>=;,:?#\\"\n',
        "<<<",
        ">>>",
        "isv",
        "lam",
        "486",
        "1.2f",
        "fmaxf",
        "const",
        "enum",
        "define",
        "for",
        "+",
        "//",
    ]
)


@given(st.lists(alphabet, max_size=60))
def test_any_order_of_brackets_and_names_goes_through(pieces):
    source = " ".join(pieces)
    assert "".join(t.raw for t in tokenize(source)) == source
    findings_in(source)


def test_places_are_those_of_an_editor():
    tokens = tokenize('a\n  bc /* x\n y */ R"(\n)" d\\\ne\r\nf')
    places = {t.text: (t.line, t.column) for t in tokens if t.kind == "name"}
    assert places == {"a": (1, 1), "bc": (2, 3), "de": (4, 4), "f": (6, 1)}


@pytest.mark.parametrize("source", ["/* a", 'x = "a', 'R"x(a)"', '"a\\'])
def test_what_has_no_end_says_so(source):
    assert [t.closed for t in tokenize(source) if t.kind in ("comment", "string")] == [False]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.05f", 0.05),
        ("1e-3f", 1e-3),
        (".5", 0.5),
        ("3.", 3.0),
        ("1'000.5e1", 10005.0),
        ("0x1.8p1", 3.0),
        ("0x.8p0f", 0.5),
        ("1.5bf16", 1.5),
        ("2.0_q", 2.0),
        ("486", 486),
        ("1'000ull", 1000),
        ("0x1E6", 486),
        ("0b11", 3),
        ("0750", 488),
        ("0", 0),
        ("10z", 10),
    ],
)
def test_values_of_literals(text, value):
    number = number_of(text)
    assert number is not None
    assert (number.value, number.real) == (value, isinstance(value, float))
    assert number.decimal == (not text.lower().startswith(("0x", "0b", "075")))


@pytest.mark.parametrize("text", ["08", "1e", "1.2.3", "0b2", "1x", "1.0g", "0x", "9" * 500])
def test_what_is_no_literal(text):
    assert number_of(text) is None


@given(st.floats(0, 1e300), st.sampled_from(["", "f", "L", "_lam"]))
def test_values_of_any_float(value, suffix):
    text = repr(value)
    number = number_of(text + suffix)
    assert number is not None
    assert number.value == value
    assert math.isfinite(number.value)


@given(st.integers(0, 2**64 - 1), st.sampled_from(["", "u", "ll", "ULL", "z"]))
def test_values_of_any_integer(value, suffix):
    for text in (str(value), hex(value), bin(value), f"{value:_}".replace("_", "'")):
        number = number_of(text + suffix)
        assert number is not None
        assert number.value == value
