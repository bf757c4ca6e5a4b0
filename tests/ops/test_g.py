"""Threshold functions: inverses, derivatives, scales, and the paper's three properties."""

import math

import pytest
import torch

from softprune.ops import Custom, Exp, Sigmoid, Softplus


@pytest.mark.parametrize("g", [Sigmoid(), Sigmoid(0.2), Exp(), Exp(3.0), Softplus(), Softplus(0.5)], ids=str)
def test_inverse_undoes_g(g):
    s = torch.linspace(-15, 3, 50, dtype=torch.float64)
    torch.testing.assert_close(g.inverse(g(s)), s)


@pytest.mark.parametrize("g", [Sigmoid(0.2), Exp(3.0), Softplus(0.5)], ids=str)
def test_derivative_by_central_differences(g):
    s, h = torch.linspace(-6, 2, 30, dtype=torch.float64), 1e-6
    torch.testing.assert_close(g.derivative(s), (g(s + h) - g(s - h)) / (2 * h), rtol=1e-6, atol=1e-9)


def test_known_values():
    zero = torch.zeros(1)
    assert float(Sigmoid(2.0)(zero)) == 1.0
    assert float(Exp(2.0)(zero)) == 2.0
    assert float(Softplus()(zero)) == pytest.approx(math.log(2))
    # Large s must not overflow on the way back.
    assert float(Softplus().inverse(torch.tensor([200.0]))) == pytest.approx(200.0)


def test_auto_scale_is_taken_from_the_weights():
    w = torch.tensor([1.0, -1.0, 1.0, -1.0])
    g = Sigmoid(k="auto").resolve(w)
    assert g.k == pytest.approx(4 * math.sqrt(4 / 3))  # sample deviation of +-1 is sqrt(4/3)
    assert Sigmoid(0.5).resolve(w) == Sigmoid(0.5)
    assert Exp(k="auto").resolve(torch.zeros(5)).k == 1.0
    with pytest.raises(ValueError, match=r"call resolve"):
        Sigmoid(k="auto")(w)


@pytest.mark.parametrize("k", [0.0, -1.0, math.inf, math.nan, "large"])
def test_a_bad_scale_is_refused(k):
    with pytest.raises(ValueError, match="k must be a positive number"):
        Sigmoid(k)


def square(s):
    return (s + 30) ** 2 / 1e4


def square_inverse(a):
    return 100 * a.sqrt() - 30


@pytest.mark.parametrize(
    ("f", "f_inverse", "complaint"),
    [
        (torch.sin, torch.asin, "is not positive"),
        (lambda s: torch.exp(-s), lambda a: -torch.log(a), "does not rise"),
        (lambda s: torch.exp(s), lambda a: torch.log(a) * 0.99, "is not undone by f_inverse"),
        (lambda s: 5.0 + torch.sigmoid(s), lambda a: torch.logit(a - 5.0), "does not fall towards 0"),
        (lambda s: -1 / s, lambda a: -1 / a, "is not finite"),
        (
            lambda s: torch.sqrt(-s),
            lambda a: -(a**2),
            "has no finite derivative|is not positive|does not rise",
        ),
        (lambda s: s.sum(), lambda a: a, "must be elementwise"),
        (lambda s: 100 * (s + 21), lambda a: a / 100 - 21, "must start below 1"),
    ],
)
def test_functions_without_the_three_properties_are_refused(f, f_inverse, complaint):
    with pytest.raises(ValueError, match=complaint):
        Custom(f=f, f_inverse=f_inverse)


def test_the_properties_are_asked_for_where_the_function_is_used():
    assert float(Custom(f=square, f_inverse=square_inverse)(torch.zeros(1))) == pytest.approx(0.09)
    with pytest.raises(ValueError, match=r"\[-40, 0\]"):
        Custom(f=square, f_inverse=square_inverse, s_low=-40.0)
    with pytest.raises(ValueError, match="s_low must be below s_high"):
        Custom(f=square, f_inverse=square_inverse, s_low=1.0, s_high=0.0)


def test_the_scale_of_tensors_too_small_to_have_a_spread():
    # The sample deviation of 1 and -1 is the root of 2; one weight has none.
    assert Sigmoid(k="auto").resolve(torch.tensor([1.0, -1.0])).k == pytest.approx(4 * math.sqrt(2))
    assert Sigmoid(k="auto").resolve(torch.tensor([3.0])).k == 1.0


@pytest.mark.parametrize(
    ("f", "f_inverse", "complaint"),
    [
        (lambda s: (s + 10) / 100, lambda a: 100 * a - 10, "^g is not positive at s = -20;"),
        (lambda s: (s + 20) / 100, lambda a: 100 * a - 20, "^g is not positive at s = -20;"),
        (lambda s: 0.1 + torch.sqrt(s + 20), lambda a: (a - 0.1) ** 2 - 20, "^g has no finite derivative at s = -20;"),
        (lambda s: 0.1 + torch.relu(s + 10), lambda a: a - 10.1, "^g does not rise .* at s = -20;"),
        # The slope is exactly 1 at s = -20 and smaller from there on.
        (lambda s: 2 * torch.sqrt(s + 21) - 1, lambda a: ((a + 1) / 2) ** 2 - 21, r"^g'\(s\) = 1 at s = -20"),
        (torch.exp, lambda a: torch.log(a) - 0.5, "^g is not undone by f_inverse"),
    ],
    ids=["negative", "zero", "steep", "flat", "slope of 1", "inverse too low"],
)
def test_the_property_that_fails_is_named_with_its_place(f, f_inverse, complaint):
    with pytest.raises(ValueError, match=complaint):
        Custom(f=f, f_inverse=f_inverse)


def test_functions_that_just_have_the_properties_are_accepted():
    # From 1 at s = -20 to 2 at s = 0: exactly half.
    assert float(Custom(f=lambda s: 2 + s / 20, f_inverse=lambda a: 20 * (a - 2))(torch.zeros(1))) == 2.0
    # An inverse may be off by a millionth of s.
    nearly = Custom(f=torch.exp, f_inverse=lambda a: torch.log(a) * (1 + 5e-7))
    assert float(nearly(torch.zeros(1))) == 1.0
    with pytest.raises(ValueError, match="g is not undone by f_inverse at s = -0"):
        Custom(f=torch.exp, f_inverse=lambda a: torch.log(a) + 1.5e-6)
    with pytest.raises(ValueError, match="s_low must be below s_high"):
        Custom(s_low=-1.0, s_high=-1.0)


def test_a_function_of_ones_own_is_scaled_there_and_back():
    g = Custom(2.0, torch.sigmoid, torch.logit)
    assert float(g(torch.tensor(0.0))) == 1.0
    # 2 * sigmoid(s) = 0.5 at s = log(1 / 3).
    assert float(g.inverse(torch.tensor(0.5))) == pytest.approx(math.log(1 / 3), rel=1e-6)


def test_without_bounds_a_function_is_looked_at_from_minus_twenty_to_zero():
    def only_between(low, high):
        return lambda s: torch.where((s < low) | (s > high), torch.nan, torch.sigmoid(s))

    assert Custom(f=only_between(-20.0, 0.0), f_inverse=torch.logit).scale == 1.0
    for ends in ((-19.99, 0.0), (-20.0, -0.01)):
        with pytest.raises(ValueError, match="g is not finite"):
            Custom(f=only_between(*ends), f_inverse=torch.logit)


def test_the_scale_of_a_function_of_ones_own_is_checked_too():
    with pytest.raises(ValueError, match=r'k must be a positive number or "auto", got -1'):
        Custom(k=-1)
