"""The maths reward: one answer is one answer, and no text holds it up. See also `cases`."""

import os
import pickle
import runpy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import accuracy_reward

from grpo_nb.rewards import math_worker, maths
from grpo_nb.tasks import formats
from tests.rewards.cases import slot


def scores_of(answers: list[str], gold: str) -> list[float | None]:
    completions = [slot(answer) for answer in answers]
    return maths()(completions=completions, answer=[gold] * len(answers))


JOINTS = [" or ", ", ", ",", " = ", r" \text{ or } ", "; ", r" \lor ", r" \quad ", "\n", " "]
JOINTS += ["/", ":", r"\,", "~", " & ", ")(", r"\\", " | "]


@pytest.mark.parametrize("joint", JOINTS)
def test_second_answer_after_the_right_one_is_refused(joint: str) -> None:
    others = ["x+2", "7", "y", "x", "41x"]
    assert scores_of([f"x+1{joint}{other}" for other in others], "x+1") == [0.0] * 5


@pytest.mark.parametrize("joint", JOINTS)
def test_second_answer_before_the_right_one_is_refused(joint: str) -> None:
    others = ["x+2", "7", "x", "41x"]
    assert scores_of([f"{other}{joint}x+1" for other in others], "x+1") == [0.0] * 4


def test_name_before_the_right_answer_is_accepted() -> None:
    assert scores_of(["y = x+1"], "x+1") == [1.0]


BOXES = [
    r"\boxed{\frac{1}{3}}",
    r"\boxed{\frac{1}{2}}",
    r"\boxed{41 = 42}",
    r"\boxed{42 \text{ is wrong}}",
]
GOLDS_OF_BOXES = [r"\frac{1}{3}", r"\frac{1}{3}", "42", "42"]


def test_trl_still_scores_as_the_docstring_says() -> None:
    chats = [[{"role": "assistant", "content": text}] for text in BOXES]
    # If this fails, TRL has fixed it, and the docstring of maths is out of date.
    assert accuracy_reward(chats, GOLDS_OF_BOXES) == [1.0, 0.0, 1.0, 1.0]


def test_maths_refuses_answers_that_trl_rewards() -> None:
    chats = [[{"role": "assistant", "content": text}] for text in BOXES]
    reward = maths(format=formats.boxed())
    assert reward(completions=chats, answer=GOLDS_OF_BOXES) == [1.0, 0.0, 0.0, 0.0]


TOKENS = (
    r"x y 1 9 + - ^ { } ( ) \frac \sqrt = , \text{or} / ! \sum _ \left( \right) \int \cdot % \\ &"
)
TOKENS = [*TOKENS.split(), "sin", "\\pi", "i", "e", " ", "\x00", "\ud800", "\u4e03"]
LATEX = st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(LATEX, min_size=1, max_size=3),
    gold=st.sampled_from(["x+1", r"2\sqrt{3}", "(1,2)", "x=1, x=2", r"\frac{x}{y}"]),
)
def test_no_latex_makes_maths_raise(texts: list[str], gold: str) -> None:
    scores = scores_of(texts, gold)
    assert set(scores) <= {0.0, 1.0}
    assert [scores_of([text], gold)[0] for text in texts] == scores


def test_worker_module_imports_where_forks_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")
    assert "are_equal_expressions" in runpy.run_path(math_worker.__file__)


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [
        pytest.param("1+x", "x+1", 1.0, id="right"),
        pytest.param("2+x", "x+1", 0.0, id="wrong"),
        pytest.param("2+x", "", None, id="no gold answer"),
    ],
)
def test_score_text_is_the_score_of_a_batch(text: str, gold: str, score: float | None) -> None:
    assert maths().score_text(slot(text), {"answer": gold}) == score


def test_terms_in_another_order_are_the_same_list() -> None:
    assert scores_of(["3y, 2x", "2x,3y", "2x, 2y"], "2x, 3y") == [1.0, 1.0, 0.0]


def test_repeated_parts_with_spaces_count_once() -> None:
    given = [r"\pi r, \pi r, 2", r"2, \pi r", r"\pi r, 3", r"\pi r, 3, 2"]
    assert scores_of(given, r"r \pi, 2") == [1.0, 1.0, 0.0, 0.0]


def test_repeated_parts_of_the_gold_answer_count() -> None:
    assert scores_of(["1, 2, 1", "2, 1"], "1, 1, 2") == [1.0, 0.0]


def test_ratio_with_other_parts_is_refused() -> None:
    # As one expression, 1:3:2 would be the same quotient.
    assert scores_of(["1:2:3", "1:3:2", "2:4:6"], "1:2:3") == [1.0, 0.0, 0.0]


def test_named_parts_are_a_tuple_in_the_order_of_their_names() -> None:
    given = ["x = 1, y = 2", "y = 2, x = 1", "y = 1, x = 2"]
    assert scores_of(given, "(1, 2)") == [1.0, 1.0, 0.0]


def test_roots_with_an_index_are_a_list_in_any_order() -> None:
    given = ["x_1 = 3, x_2 = 2", "x_1 = 2, x_2 = 3", "x_1 = 3, x_2 = 4"]
    assert scores_of(given, "2, 3") == [1.0, 1.0, 0.0]


def test_roots_with_an_index_keep_the_order_of_a_tuple() -> None:
    assert scores_of(["x_1 = 2, x_2 = 3", "x_1 = 3, x_2 = 2"], "(2, 3)") == [1.0, 0.0]


def test_or_between_two_variables_is_not_and() -> None:
    given = ["x = 1 or y = 2", "y = 2 and x = 1", "x = 1, y = 2"]
    assert scores_of(given, "x = 1 and y = 2") == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("gold", ["x = 1 and x = 2", "x_1 = 1 and x_2 = 2"])
def test_or_between_roots_is_also_and(gold: str) -> None:
    assert scores_of([gold.replace("and", "or")], gold) == [1.0]


def test_many_parts_in_another_order_are_the_same_list() -> None:
    parts = [str(number) for number in range(20)]
    assert scores_of([", ".join(reversed(parts))], ", ".join(parts)) == [1.0]


def test_pickled_maths_still_scores() -> None:
    reward = pickle.loads(pickle.dumps(maths()))
    assert reward(completions=[slot("a+m")], answer=["m+a"]) == [1.0]


@pytest.mark.parametrize(
    ("given", "gold", "score"),
    [
        pytest.param("f'(x)=2x", "f'(x) = 2x", 1.0, id="same"),
        pytest.param("2x", "f'(x) = 2x", 1.0, id="no name"),
        pytest.param("2x", "f''(x) = 2x", 1.0, id="no name of two primes"),
        pytest.param("f(x)=2x", "f'(x) = 2x", 0.0, id="function itself"),
        pytest.param("f''(x)=2x", "f'(x) = 2x", 0.0, id="second derivative"),
        pytest.param("3x", "f'(x) = 2x", 0.0, id="wrong"),
        pytest.param("-2y + y' = x", "y' - 2y = x", 1.0, id="equation"),
        pytest.param("y - 2y = x", "y' - 2y = x", 0.0, id="equation without prime"),
        pytest.param("x'", "x", 0.0, id="prime too many"),
        pytest.param("{'b': 2}", "{'a': 2}", 0.0, id="quoted text"),
        pytest.param("f(x)g'(x) + f'(x)g(x)", "f'(x)g(x) + f(x)g'(x)", 1.0, id="sum"),
        pytest.param("f(x)g'(x) - f'(x)g(x)", "f'(x)g(x) - f(x)g'(x)", 0.0, id="difference"),
        pytest.param(
            r"\frac{f(x)g'(x) - f'(x)g(x)}{g(x)^2}",
            r"\frac{f'(x)g(x) - f(x)g'(x)}{g(x)^2}",
            0.0,
            id="quotient rule",
        ),
        pytest.param("A'B' + AB", "A'B + AB'", 0.0, id="primes on other factors"),
        pytest.param("AB' + A'B", "A'B + AB'", 1.0, id="other order"),
        pytest.param("2x' + x", "x' + 2x", 0.0, id="prime on another term"),
        pytest.param("2x^{\\prime} + x", "x^\\prime + 2x", 0.0, id="prime as a command"),
        pytest.param("2x + x^{\\prime}", "x' + 2x", 1.0, id="prime in two spellings"),
        pytest.param("2x_1' + x_2'", "x_1' + 2x_2'", 0.0, id="primes after an index"),
        pytest.param("2x_2' + x_1'", "x'_1 + 2x'_2", 1.0, id="primes before an index"),
        pytest.param("y'' + 2y' + y = 0", "y'' + y' + 2y = 0", 0.0, id="other coefficients"),
        pytest.param("2y' + y'' + y = 0", "y'' + 2y' + y = 0", 1.0, id="same coefficients"),
        pytest.param("(f)'g", "f(g)'", 0.0, id="prime on a bracket"),
    ],
)
def test_primes_are_part_of_an_expression(given: str, gold: str, score: float) -> None:
    assert scores_of([given], gold) == [score]


QUOTIENT = "Simplify (x^2 - 1)/(x - 1)."


@pytest.mark.parametrize(
    ("question", "given", "gold", "score"),
    [
        pytest.param("Simplify 1 + x.", "1+x", "x+1", 0.0, id="copied"),
        pytest.param("Divide by 1+x^2.", "1+x", "x+1", 1.0, id="before a power"),
        pytest.param("Is it ax+1?", "x+1", "1+x", 1.0, id="after a letter"),
        pytest.param("Is it 1+xy?", "1+x", "x+1", 1.0, id="before a letter"),
        pytest.param("What is 84/2 meters?", "84/2 m", "42", 0.0, id="number with a unit"),
        pytest.param("y = 2x + 1 or y = 3x?", "2x + 1", "y = 2x + 1", 1.0, id="without its name"),
        pytest.param("2x + 1 or 3x?", "y = 2x + 1", "2x + 1", 1.0, id="with a name"),
        pytest.param("Simplify 2y-2x=0.", "2y-2x=0", "y-x=0", 0.0, id="equation"),
        pytest.param(QUOTIENT, "(x^2-1)/(x-1)", "x+1", 0.0, id="quotient"),
        pytest.param(QUOTIENT, "y = (x^2-1)/(x-1)", "x+1", 0.0, id="name before a copy"),
        pytest.param(QUOTIENT, "f(x) = (x^2-1)/(x-1)", "x+1", 0.0, id="function before a copy"),
        pytest.param(QUOTIENT, "((x^2-1)/(x-1))", "x+1", 0.0, id="brackets around a copy"),
        pytest.param(QUOTIENT, r"\frac{x^2-1}{x-1}", "x+1", 0.0, id="copy as a fraction"),
        pytest.param(r"Is it $\frac{x+1}{2}$ or $x$?", "(x+1)/2", "(1+x)/2", 0.0, id="fraction"),
        pytest.param(QUOTIENT, "y = x+1", "x+1", 1.0, id="name before the result"),
    ],
)
def test_part_of_another_expression_is_no_copy(
    question: str, given: str, gold: str, score: float
) -> None:
    assert maths()(completions=[slot(given)], answer=[gold], prompts=[question]) == [score]


@pytest.mark.parametrize(
    ("given", "gold", "score"),
    [
        pytest.param(r"3 \cdot \frac{1}{2}", r"3\frac{1}{2}", 0.0, id="mixed number"),
        pytest.param(r"3\frac{1}{2}", r"3 \cdot \frac{1}{2}", 0.0, id="product with a fraction"),
        pytest.param(r"(3 \cdot \frac{1}{2}, 1)", r"(3\frac{1}{2}, 1)", 0.0, id="in a tuple"),
        pytest.param(r"(3\frac{1}{2}, 1)", r"(3 \cdot \frac{1}{2}, 1)", 0.0, id="other tuple"),
        pytest.param("a/b*c", "a/bc", 0.0, id="denominator"),
        pytest.param("1/x*y", "1/xy", 0.0, id="one over a product"),
        pytest.param("n*o", "no", 0.0, id="short word"),
        pytest.param("T*r*ue", "True", 0.0, id="long word"),
        pytest.param(r"x \cdot y", "xy", 1.0, id="letters"),
        pytest.param("m*g*h", "mgh", 1.0, id="three letters"),
        pytest.param("a*b", "ab", 1.0, id="first letters"),
        pytest.param(r"\pi r^2 \cdot h", r"\pi r^2 h", 1.0, id="cylinder"),
        pytest.param(r"\frac{1}{2} \cdot b \cdot h", r"\frac12 bh", 1.0, id="triangle"),
        pytest.param(r"\pi r^2", r"\pi r^2 h", 0.0, id="without the last letter"),
        pytest.param(r"\frac{ab}{2}", r"\frac{1}{2}ab", 1.0, id="triangle"),
        pytest.param("2ba", "2ab", 1.0, id="two letters in another order"),
        pytest.param("bi+a", "a+bi", 1.0, id="imaginary unit"),
        pytest.param(
            "x = 1.0 and y = 2 or z = 3", "x = 1 and y = 2 or z = 3", 1.0, id="both words"
        ),
        pytest.param("3i+x", "x+3i", 1.0, id="imaginary unit after a number"),
        pytest.param("a+b", "a+bi", 0.0, id="without the imaginary unit"),
        pytest.param("dx e^{x}", "e^{x} dx", 1.0, id="differential"),
        pytest.param(
            r"\sqrt{50}", r"5\sqrt{2} units", 1.0, id="without the unit of the gold answer"
        ),
        pytest.param("3 + x hours", "x + 3 hours", 1.0, id="unit after a sum"),
        pytest.param("2a", "2ab", 0.0, id="without the second letter"),
        pytest.param("2", "2ab", 0.0, id="without both letters"),
        pytest.param(r"\pi r^2 h", r"\pi r^2", 0.0, id="with another last letter"),
        pytest.param(r"2\pi m", r"2\pi", 1.0, id="last letter is a unit"),
        pytest.param("2", "2m", 0.0, id="last letter is a factor"),
        pytest.param(r"2\pi", r"2\pi h", 0.0, id="last letter may be a variable"),
        pytest.param(r"h 2\pi", r"2\pi h", 1.0, id="last letter first"),
        pytest.param(r"c = \sqrt{50} \text{ cm}", r"5\sqrt{2} \text{ cm}", 1.0, id="name and unit"),
        pytest.param(r"m = \sqrt{50} m", r"5\sqrt{2} m", 1.0, id="name and unit of one letter"),
        pytest.param(r"2\sqrt{3}", r"\sqrt{12} \text{ cm}^2", 1.0, id="power of a unit"),
    ],
)
def test_multiplication_sign_keeps_the_value(given: str, gold: str, score: float) -> None:
    assert scores_of([given], gold) == [score]


@pytest.mark.parametrize(
    ("question", "given", "score"),
    [
        pytest.param("How long?\nA) 2cm\nB) 3cm", "B) 3cm", 1.0, id="unit"),
        pytest.param("How long?\nA) 2cm\nB) 3cm", "B) 2 cm", 0.0, id="unit of another option"),
        pytest.param("How many? A) 2,000, B) 1,000", "B) 2000", 0.0, id="number of another option"),
        pytest.param("(A) \u221a3 (B) \u221a2", "B) \u221a2", 1.0, id="root"),
        pytest.param("(A) \u221a3 (B) \u221a2", r"B) \sqrt{3}", 0.0, id="root of another option"),
        pytest.param("If x = 5: A) 5.5 B) 5.0", "B) 5", 1.0, id="start of another number"),
        pytest.param("A) 5+x B) 5.0", "B) 5", 1.0, id="start of another expression"),
        pytest.param("A) f(x) = 5 B) f(x) = 6", "B) f(x)=6", 1.0, id="value of a function"),
        pytest.param("A) f(x) = 5 B) f(x) = 6", "B) 5", 0.0, id="value of another function"),
        pytest.param("A) f(x, y) = 0 B) f(x, y) = 1", "B) f(x, y) = 1", 1.0, id="two variables"),
        pytest.param("A) f(x, y) = 0 B) f(x, y) = 1", "B) f(x, y) = 0", 0.0, id="other value"),
        pytest.param("(A) Rome (B) Paris (C) Bern", "(B) Paris (C) Bern", 0.0, id="in brackets"),
        pytest.param("A) Rome B) Paris C) Bern", "B) Paris C) Bern", 0.0, id="two options"),
        pytest.param("f(x) + g(x)? ['4', '5']", "B) 4", 0.0, id="options without letters"),
    ],
)
def test_text_after_the_letter_is_that_of_its_option(
    question: str, given: str, score: float
) -> None:
    assert maths()(completions=[slot(given)], answer=["B"], prompts=[question]) == [score]


@pytest.mark.parametrize(
    ("given", "gold", "score"),
    [
        pytest.param(r"\frac{r}{R}", r"\frac{R}{r}", 0.0, id="reciprocal"),
        pytest.param(r"\frac{1}{r} R", r"\frac{R}{r}", 1.0, id="same quotient"),
        pytest.param("mg+M", "Mg+m", 0.0, id="other product"),
        pytest.param("m+gM", "Mg+m", 1.0, id="other order"),
        pytest.param("(r, R)", "(R, r)", 0.0, id="tuple"),
        pytest.param("-x_a + x_A", "x_A - x_a", 1.0, id="index"),
        pytest.param("x_a - x_A", "x_A - x_a", 0.0, id="other index"),
        pytest.param("R_2 - r", "R_1 - r", 0.0, id="index of a capital"),
        pytest.param("Mg+mg", "2mg", 0.0, id="capital in the given answer alone"),
        pytest.param(r"\delta", r"\Delta", 0.0, id="Greek letter"),
        pytest.param(r"\Omega t", r"\omega t", 0.0, id="\\Omega"),
        pytest.param(r"t\Omega", r"\Omega t", 1.0, id="\\Omega in another order"),
        pytest.param(r"5 \Omega", r"5\Omega", 1.0, id="ohm"),
        pytest.param("1 + \u0394x", r"\Delta x + 1", 1.0, id="Greek letter in Unicode"),
        pytest.param(r"a = \frac{\Delta v}{t}", r"\frac{\Delta v}{t}", 1.0, id="name and \\Delta"),
        pytest.param("r = R/2", "R/2", 1.0, id="name of a small letter"),
        pytest.param(r"p = \frac{M}{m+M}", r"\frac{M}{M+m}", 1.0, id="name in capital"),
        pytest.param(r"\frac{E}{r+R}", r"\frac{E}{R+r}", 1.0, id="E"),
        pytest.param(r"\Delta E + 1", r"1+\Delta E", 1.0, id="\\Delta E"),
        pytest.param(r"-x + \bar{X}", r"\bar{X}-x", 1.0, id="bar"),
        pytest.param(r"-p + \hat{P}", r"\hat{P}-p", 1.0, id="hat"),
        pytest.param("R = 2R", "2R", 0.0, id="name in its own value"),
        pytest.param(r"\mathbb{R}, r + 2r", r"3r, \mathbb{R}", 1.0, id="set"),
        pytest.param("x^2 + c", "x^2 + C", 1.0, id="constant"),
        pytest.param("NO SOLUTION", r"\text{No solution}", 1.0, id="words"),
        pytest.param("b", "B", 1.0, id="letter of an option"),
    ],
)
def test_capitals_tell_two_symbols_apart(given: str, gold: str, score: float) -> None:
    assert scores_of([given], gold) == [score]


@pytest.mark.parametrize("gold", ["x > a", "a < x"])
def test_inequality_with_a_parameter_is_an_interval(gold: str) -> None:
    given = [r"(a, \infty)", r"x \in (a, \infty)", "a < x", "x > a", r"(-\infty, a)", "a > x"]
    assert scores_of(given, gold) == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("gold", "interval"),
    [
        pytest.param(r"x > \pi", r"(\pi, \infty)", id="above"),
        pytest.param(r"\phi \le \pi", r"(-\infty, \pi]", id="below"),
    ],
)
def test_pi_is_an_end_of_an_interval(gold: str, interval: str) -> None:
    assert scores_of([interval, r"(-\pi, \infty)"], gold) == [1.0, 0.0]


def test_value_at_pi_may_stand_without_its_name() -> None:
    assert scores_of(["x+3", "x+2"], r"f(\pi) = x + 3") == [1.0, 0.0]


def test_any_greek_letter_may_be_repeated() -> None:
    assert scores_of([r"\eta x + \eta", r"\eta x + \xi"], r"\eta(x+1)") == [1.0, 0.0]


@pytest.mark.parametrize("gold", [r"0, \pm 2", r"x = 0 or x = \pm 2"])
def test_plus_minus_in_a_list_is_two_parts(gold: str) -> None:
    assert scores_of(["-2, 0, 2", "0, 2", "0, -2"], gold) == [1.0, 0.0, 0.0]


def test_several_plus_minus_are_not_half_of_their_values() -> None:
    gold = r"\pm 1 \pm \sqrt{2}"
    given = [gold, r"1 + \sqrt{2}, -1 - \sqrt{2}", r"1 + \sqrt{2}"]
    assert scores_of(given, gold) == [1.0, 0.0, 0.0]


def test_absolute_value_equals_the_root_of_a_square() -> None:
    assert scores_of(["|x|", "|x| + 1", "x", "|x| 7"], r"\sqrt{x^2}") == [1.0, 0.0, 0.0, 0.0]


def test_interval_with_reversed_brackets_is_no_list() -> None:
    assert scores_of(["]1, 2[", "2, 1", "1, 2"], "]1, 2[") == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("given", "score"),
    [
        pytest.param(r"7 \pmod {12}", 1.0, id="same"),
        pytest.param(r"5 \pmod{12}", 0.0, id="another residue"),
        pytest.param(r"7 \pmod{13}", 0.0, id="another modulus"),
        pytest.param("7", 0.0, id="no modulus"),
    ],
)
def test_modulus_is_part_of_the_answer(given: str, score: float) -> None:
    assert scores_of([given], r"7 \pmod{12}") == [score]


@pytest.mark.parametrize(
    ("gold", "given", "score"),
    [
        pytest.param(r"5\sqrt{2} cm", r"5\sqrt{2} cm", 1.0, id="same unit"),
        pytest.param(r"5\sqrt{2} cm", r"\sqrt{50}\text{ cm}", 1.0, id="same unit as text"),
        pytest.param(r"5\sqrt{2} cm", r"5\sqrt{2} centimeters", 1.0, id="same unit in words"),
        pytest.param(r"5\sqrt{2} cm", r"5\sqrt{2}", 1.0, id="no unit"),
        pytest.param(r"5\sqrt{2} cm", r"5\sqrt{2} mm", 0.0, id="other unit"),
        pytest.param(r"5\sqrt{2} cm", r"5\sqrt{2} s", 0.0, id="unit of one letter"),
        pytest.param(r"2\pi m", r"2\pi s", 0.0, id="two units of one letter"),
        pytest.param(r"5\sqrt{2} km/h", r"5\sqrt{2} m/s", 0.0, id="quotients of units"),
        pytest.param(r"(2\pi m, 3\pi m)", r"(2\pi s, 3\pi s)", 0.0, id="units of parts"),
    ],
)
def test_expressions_with_another_unit_score_0(gold: str, given: str, score: float) -> None:
    assert scores_of([given], gold) == [score]
