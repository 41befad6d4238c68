"""How law G counts: a graph that is used counts once, one that torch throws away does not."""

import numpy as np
import pytest
import torch

from mapsto.inputs.series import SeriesInput
from mapsto.ragged import Ragged
from mapsto.testing.batch import stretch
from mapsto.testing.graph import Counter, check_compile
from mapsto.testing.verdict import Report


class Scaled(torch.nn.Module):
    """A Python float that takes part in sizes: torch makes it an input of the graph, then begins anew with a constant."""

    scale = 0.5

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, scale=self.scale)


def graphs(function, inputs):
    """How many graphs the inputs need."""
    torch._dynamo.reset()
    counter = Counter()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for arguments in inputs:
        compiled(*arguments)
    torch._dynamo.reset()
    return counter.graphs


def series(patch):
    one = SeriesInput(4, mean=[0.0] * 3, scale=[1.0] * 3, patch=patch)
    parsed = [one.parse(np.random.default_rng(n).normal(size=(n, 3))) for n in (19, 8, 5)]
    columns = {n: Ragged.pack([row[n] for row in parsed]) for n in parsed[0]}
    return one, one.gather({n: c.take(np.arange(3)) for n, c in columns.items()})


def test_a_graph_that_torch_begins_anew_counts_once():
    assert graphs(Scaled(), [(torch.ones(2, 2, n, 4),) for n in (5, 9, 30)]) == 1


def test_a_graph_for_each_length_is_counted():
    report = Report("Unrolled")

    def unrolled(x):
        for row in x.unbind(0):
            x = x + row
        return x

    check_compile(report, "eval", unrolled, [(torch.ones(n, 2),) for n in range(2, 8)], 1e-5)
    assert report.verdicts()[0].note == "Unrolled, eval: needs 6 graphs"


def test_a_stretched_batch_is_laid_out_as_a_gathered_one():
    _, batch = series(patch=2)
    for length in (1, 7, 40):
        assert all(t.is_contiguous() for t in stretch(batch, length).values())


@pytest.mark.parametrize("patch", [1, 2])
def test_a_series_needs_one_graph_and_another_for_a_single_item(patch):
    one, batch = series(patch)
    with torch.no_grad():
        assert graphs(lambda b: one(b).items, [(batch,), *((stretch(batch, n),) for n in (7, 1, 64, 300))]) == 2
