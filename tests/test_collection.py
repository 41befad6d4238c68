"""A collection knows when all of its items exist: the flag goes where the items go, and changes no answer."""

import pytest
import torch
from torch.utils import _pytree

from mapsto.attention.softmax import SoftmaxAttention
from mapsto.collection import Collection, join
from mapsto.nn.initial import initialise
from mapsto.nn.pool import POOLS, ClassPool, pool
from mapsto.nn.transformer import Decoder, Encoder
from mapsto.stream import stream


def items(rows=3, count=4, dim=8, seed=0):
    return torch.randn(rows, count, dim, generator=stream(seed, "test"), dtype=torch.float64)


class _Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *values):
        return self.function(*values)


def full(**more):
    return Collection.build(items(**more))


def masked(**more):
    x = items(**more)
    return Collection(x, torch.ones(x.shape[:2], dtype=torch.bool))


def test_what_is_built_without_a_mask_or_with_one_that_says_all_is_full():
    ones = masked().valid
    for x in (full(), Collection.build(items(), ones)):
        assert x.full
        assert x.mask is None
        assert x.valid.all()
    assert not Collection.build(items(), ones.index_fill(1, torch.tensor([3]), False)).full
    assert not masked().full
    assert masked().mask.all()


def test_no_device_is_waited_for_and_no_graph_cut_to_know_it():
    assert not Collection.build(items().to("meta"), masked().valid.to("meta")).full

    def flag(x, valid):
        return x + Collection.build(x, valid).full

    program = torch.export.export(_Called(flag), (items(), masked().valid))
    assert torch.equal(program.module()(items(), masked().valid), items())


def test_the_flag_goes_where_the_items_go():
    x = full()
    rows = torch.tensor([2, 0])
    for same in (x.replace(items=2 * x.items), x[rows], x[:2], x.to(torch.float32), join([x], []), x.pack().unpack()):
        assert same.full
    leaves, spec = _pytree.tree_flatten(x)
    assert _pytree.tree_unflatten(leaves, spec).full
    again = _pytree.treespec_loads(_pytree.treespec_dumps(spec))
    assert _pytree.tree_unflatten(leaves, again).full
    marks = [torch.ones(8, dtype=torch.float64)] * 2
    assert join([x, full(count=2)], marks).full
    assert ClassPool(8).enter(x).full


def test_a_mask_takes_it_away():
    x = full()
    assert not x.replace(valid=torch.zeros(3, 4, dtype=torch.bool)).full
    assert not join([x, masked(count=2)], [torch.ones(8, dtype=torch.float64)] * 2).full


def test_joined_full_parts_are_what_joined_parts_with_masks_are():
    marks = [torch.full((8,), v, dtype=torch.float64) for v in (0.5, -1.0)]
    places = torch.arange(4.0).expand(3, -1)[..., None]
    one, two = (join([made().replace(places=places), made(count=2, seed=1)], marks) for made in (full, masked))
    assert torch.equal(one.items, two.items)
    assert torch.equal(one.valid, two.valid)
    assert torch.equal(one.places, two.places)


class Told(SoftmaxAttention):
    """Notes which masks it is given."""

    def __init__(self, beta=None):
        super().__init__(beta)
        self.seen = []

    def forward(self, q, k, v, **more):
        self.seen.append(more.get("valid"))
        return super().forward(q, k, v, **more)


@pytest.mark.parametrize("made", [full, masked])
def test_attention_is_told_of_no_mask_where_all_exist(made):
    model = Decoder(8, 1, 2, attention=Told(), cross=Told()).double()
    initialise(model, 0)
    model(made(), made(count=5, seed=1))
    told = [layer.seen for layer in model.modules() if isinstance(layer, Told)]
    assert [[mask is None for mask in seen] for seen in told] == 2 * [[made is full]]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", POOLS)
def test_answers_are_those_of_a_mask_that_says_all(name, count):
    encoder, reader = Encoder(8, 2, 2).double(), pool(name, 8, 2).double()
    initialise(encoder, 0), initialise(reader, 1)
    query = Collection.build(torch.zeros(3, 1, 8, dtype=torch.float64))
    answers = [reader(query, encoder(reader.enter(made(count=count)))) for made in (full, masked)]
    torch.testing.assert_close(*answers, atol=1e-12, rtol=0)
