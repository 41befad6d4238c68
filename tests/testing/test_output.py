"""Broken twins: kinds with one deliberate fault, which the check must catch and name."""

import pytest
import torch

from mapsto.outputs.items import ItemsOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.testing import (
    check_output,
)

DIM = 8


def broken(verdicts):
    """The laws that are broken, in order, each once."""
    return list(dict.fromkeys(v.law for v in verdicts if not v.passed))


def notes(verdicts):
    return "\n".join(v.note for v in verdicts if not v.passed)


TAGS = {"name": "tag", "target": {"kind": "label", "classes": ["x", "y", "z"]}}
TAGGED = [(["x", "y", "x"],), (["z"],), (["y", "y"],)]
LABEL = {"targets": {"one": {"kind": "label", "classes": ["x", "y", "z"]}}}
LABELLED = [("x",), ("y",), ("z",)]


class MasksTooLate(ItemsOutput):
    """The loss at padding is masked after it is computed: its gradient is 0 · NaN."""

    def loss(self, theta, target):
        found = super().loss(theta, target)
        log_p = self.head.likelihood.log_prob(theta[self.name], target["values"])
        found.terms[self.name] = -log_p.masked_fill(~target["valid"], 0).sum(1)
        return found


class CountsPaddedTags(ItemsOutput):
    def log_likelihood(self, theta, target):
        return self.head.log_likelihood(theta[self.name], target["values"]).sum(1)


class MeansOverTheBatch(VectorOutput):
    def loss(self, theta, target):
        found = super().loss(theta, target)
        found.terms["one"] = found.terms["one"].mean().expand(len(found.count))
        return found


class PredictsUnseeded(VectorOutput):
    def predict(self, theta):
        torch.rand(1)
        return super().predict(theta)


class LossIsAnother(VectorOutput):
    def loss(self, theta, target):
        found = super().loss(theta, target)
        found.terms["one"] = found.terms["one"] ** 2
        return found


class ForgetsSmoothing(VectorOutput):
    def settings(self):
        return {**super().settings(), "smoothing": 0.0}


OUTPUTS = [
    (lambda: MasksTooLate(DIM, **TAGS), TAGGED, "P"),
    (lambda: CountsPaddedTags(DIM, **TAGS), TAGGED, "P"),
    (lambda: MeansOverTheBatch(DIM, **LABEL), LABELLED, "B"),
    (lambda: PredictsUnseeded(DIM, **LABEL), LABELLED, "D"),
    (lambda: LossIsAnother(DIM, **LABEL), LABELLED, "L"),
    (lambda: ForgetsSmoothing(DIM, **LABEL, smoothing=0.2), LABELLED, "R"),
    (lambda: CountsPaddedTags(DIM, **TAGS), TAGGED, "M"),
]


@pytest.mark.parametrize(
    ("make", "values", "law"), OUTPUTS, ids=[f"{type(m()).__name__}-{law}" for m, _, law in OUTPUTS]
)
def test_a_broken_output_is_caught_and_named(make, values, law):
    verdicts = check_output(make, values, laws=law)
    assert broken(verdicts) == [law]
    assert type(make()).__name__ in notes(verdicts)
