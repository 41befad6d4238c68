import pytest
import torch

from mapsto.testing import (
    Verdict,
)
from mapsto.testing.verdict import Case, Report, tolerance


def test_numbers_agree_when_their_difference_is_small_beside_their_size():
    case = Case()
    case.agree(torch.tensor([1000.0, 1000.0]), torch.tensor([1000.0, 1000.005]), 1e-5)
    assert not case.broken
    assert case.worst == pytest.approx(5e-6, rel=0.1)
    case.agree(torch.tensor([0.1]), torch.tensor([0.2]), 1e-5)
    assert case.broken == "may differ by 1e-05, differs by 0.1"


@pytest.mark.parametrize(
    "other", [torch.tensor([1.0, float("nan")]), torch.zeros(3), torch.tensor([1.0, float("inf")])]
)
def test_a_nan_or_another_shape_never_agrees(other):
    for compare in (Case.exactly, lambda c, a, b: c.agree(a, b, 1e3), lambda c, a, b: c.near(a, b, 1e3)):
        case = Case()
        compare(case, other, torch.tensor([1.0, 2.0]))
        assert case.broken
        assert case.worst == float("inf")


def test_a_rival_may_err_twice_as_much_as_the_plain_way_and_no_more():
    wanted, plain = torch.ones(4), torch.tensor([1.25, 0.75, 1.25, 1.25])
    case = Case()
    case.rival(torch.tensor([1.0, 1.0, 1.0, 2.0]), plain, wanted)  # rms 1/2, as twice 1/4
    assert not case.broken
    case.rival(torch.tensor([1.0, 1.0, 1.0, 2.125]), plain, wanted)
    assert case.broken == "may err by 0.5, twice what the plain formula does, err by 0.562"
    case = Case()
    case.rival(torch.full((4,), torch.nan), torch.full((4,), torch.nan), wanted)
    assert case.broken


def test_zeros_and_finite_numbers_are_told_from_others():
    case = Case()
    case.zero({"a": torch.zeros(2)}, "these")
    case.finite([torch.zeros(0), torch.ones(1)], "those")
    assert not case.broken
    case.zero(torch.tensor([0.0, -2.0]), "these")
    assert case.broken == "these must be zeros, found 2"


def test_an_error_inside_a_case_breaks_the_law_and_the_check_goes_on():
    report = Report("Kind")
    with report.case("P", "it holds", "first"):
        raise ValueError("no such thing\nand more")
    with report.case("P", "it holds", "second") as case:
        case.that(True, "")
    assert report.verdicts() == [
        Verdict("P", "it holds", False, float("inf"), "Kind, first: raised ValueError: no such thing")
    ]


def test_tolerances_are_those_of_the_laws():
    assert tolerance(torch.float64) == tolerance(torch.float64, model=True) == 1e-10
    assert tolerance(torch.float32) == 1e-5
    assert tolerance(torch.float32, model=True) == 1e-4
