import math

import pytest
import torch
from torch import nn

from mapsto.training.ahead import Ahead
from mapsto.training.trace import trace


class Model(nn.Module):
    """Two layers, of which one may be spoiled."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x):
        return {"theta": [self.second(self.first(x))]}


def loss(model, x, spoil=lambda total: total):
    return lambda: spoil(model(x)["theta"][0].square().sum())


def test_the_first_module_whose_output_is_not_finite_is_named():
    model, x = Model(), torch.ones(2, 3)
    batch = {"x": {"items": x, "ids": torch.ones(2, dtype=torch.int64)}}
    assert trace(model, batch, loss(model, x)) == ""
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        model.second[0].weight[0, 0] = math.nan
    assert trace(model, batch, loss(model, x)) == "the output of second.0"
    with torch.no_grad():
        model.first.bias[1] = math.inf
    assert trace(model, batch, loss(model, x)) == "the output of first"


def test_values_of_the_batch_the_loss_and_gradients_are_told_apart():
    model, x = Model(), torch.ones(2, 3)
    assert trace(model, {"x": {"items": x * math.inf}}, loss(model, x)) == "x.items, in the batch itself"
    assert trace(model, {}, loss(model, x, lambda total: total / 0)) == "the loss, from finite outputs"
    hook = model.first.weight.register_hook(lambda g: g * math.nan)
    assert trace(model, {}, loss(model, x)) == "the gradient of first.weight"
    hook.remove()
    model.second[0].bias.register_hook(lambda g: g * math.nan)
    model.first.weight.register_hook(lambda g: g * math.nan)
    assert trace(model, {}, loss(model, x)) == "the gradient of second.0.bias"


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_work_done_ahead_comes_in_order_and_its_errors_in_their_turn(threads):
    def work(number):
        if number == 5:
            raise ValueError("five")
        return number * number

    ready = Ahead(work, threads)(iter(range(10)))
    assert [next(ready) for _ in range(5)] == [(n, n * n) for n in range(5)]
    with pytest.raises(ValueError, match="five"):
        next(ready)


def test_no_more_than_a_few_tasks_are_taken_ahead():
    taken = []

    def tasks():
        for number in range(100):
            taken.append(number)
            yield number

    ready = Ahead(lambda n: n, 2)(tasks())
    for _ in range(10):
        next(ready)
    ready.close()
    assert len(taken) <= 15
