"""Positions as objects: each tells what its formula says, whole, in blocks, in steps, and inside layers."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mapsto.attention.softmax import SoftmaxAttention
from mapsto.collection import Collection
from mapsto.errors import ConfigError
from mapsto.functional.position import alibi, bucket, gathered, rotate
from mapsto.nn.distance import T5, ALiBi, Relative
from mapsto.nn.initial import initialise
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.position import Learned, NoPosition, Position, Rotary, Sinusoidal
from mapsto.nn.transformer import Decoder, Encoder
from mapsto.stream import stream

HEADS, WIDTH = 2, 8


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64)


def at(places, valid=None):
    """A collection of items at these places."""
    return Collection.build(torch.zeros(*places.shape[:2], 1), valid, places)


def ranks(batch, length):
    return torch.arange(float(length)).repeat(batch, 1)[..., None]


DISTANCES = {
    "alibi": lambda: ALiBi(HEADS),
    "t5": lambda: T5(HEADS),
    "t5 causal": lambda: T5(HEADS, buckets=6, longest=9, causal=True),
    "relative": lambda: Relative(HEADS, WIDTH, longest=4),
}
KINDS = {
    "none": NoPosition,
    "sinusoidal": lambda: Sinusoidal(HEADS * WIDTH),
    "learned": lambda: Learned(HEADS * WIDTH, 64),
    "rotary": Rotary,
    **DISTANCES,
}


def made(name):
    position = KINDS[name]()
    initialise(position, 3)
    return position.double()


@pytest.mark.parametrize(
    "position", [NoPosition(), Sinusoidal(8), Learned(8, 4), Rotary(), Position(), ALiBi(2), T5(2), Relative(2, 8)]
)
def test_a_set_is_left_as_it_is(position):
    items, x = draw(2, 3, 8), draw(2, 2, 3, 8)
    assert torch.equal(position.add(items, None), items)
    assert torch.equal(position.rotate(x, None), x)
    assert position.between(Collection.build(items), Collection.build(items), x) is None


def test_each_kind_uses_its_own_hook_only():
    items, x, places = draw(2, 3, 8), draw(2, 2, 3, 8), torch.arange(3.0).expand(2, 3)[..., None] + 1
    group = at(places)
    for position in (NoPosition(), Rotary(), ALiBi(2), T5(2), Relative(2, 8)):
        assert torch.equal(position.add(items, places), items)
    for position in (NoPosition(), Sinusoidal(8), Learned(8, 4), ALiBi(2), T5(2), Relative(2, 8)):
        assert torch.equal(position.rotate(x, places), x)
    for position in (NoPosition(), Sinusoidal(8), Learned(8, 4), Rotary()):
        assert position.between(group, group, x) is None
    assert not torch.equal(Sinusoidal(8).add(items, places), items)
    assert torch.equal(Rotary(50.0).rotate(x, places), rotate(x, places, 50.0))


def test_learned_positions_add_their_vector_and_learn():
    position = Learned(4, 10)
    position.reset(stream(0, "init"))
    places = torch.tensor([[[0.0], [3.0], [9.0]]])
    items = torch.zeros(1, 3, 4, requires_grad=True)
    out = position.add(items, places)
    assert torch.equal(out[0], position.table[[0, 3, 9]])
    out.sum().backward()
    assert position.table.grad.sum(1).tolist() == [4, 0, 0, 4, 0, 0, 0, 0, 0, 4]
    again = Learned(4, 10)
    again.reset(stream(0, "init"))
    assert torch.equal(again.table, position.table)


@pytest.mark.parametrize(("place", "text"), [(10.0, "at place 10, but 10 places"), (-1.0, "at place -1")])
def test_a_place_beyond_the_learned_ones_is_named(place, text):
    with pytest.raises(ConfigError, match=text):
        Learned(4, 10).add(torch.zeros(1, 2, 4), torch.tensor([[[0.0], [place]]]))


def test_learned_positions_count_in_one_coordinate():
    with pytest.raises(ConfigError, match="these places have 2"):
        Learned(4, 10).add(torch.zeros(1, 2, 4), torch.zeros(1, 2, 2))


def test_a_position_of_ones_own_may_look_at_the_queries():
    class Distance(Position):
        def bias(self, places_q, places_k, q):
            return -(places_q - places_k.transpose(1, 2)).abs()[:, None] * q.sum(-1, keepdim=True)

    places, q = draw(2, 6, 1), draw(2, 3, 6, 4)
    block = Distance().between(at(places), at(places[:, :5]), q)
    whole = Distance().bias(places, places[:, :5], q)
    assert whole.shape == (2, 3, 6, 5)
    assert torch.equal(block(slice(2, 4), slice(1, 5)), whole[:, :, 2:4, 1:5])


def formula(name, position, places_q, places_k, q):
    """The bias, written out of what the position has learned."""
    if name == "alibi":
        return alibi(places_q, places_k, HEADS)
    if name == "relative":
        return gathered(q, position.table, places_q, places_k)
    given = (32, 128) if name == "t5" else (6, 9)
    found = bucket(places_k.transpose(1, 2) - places_q, *given, causal=name != "t5")
    return position.table[found].permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("kind", ["ranks", "ragged ranks", "seconds", "a class item first", "one after padding"])
def test_logits_by_distance_are_the_formula_in_any_block(name, kind):
    position, q = made(name), draw(2, HEADS, 7, WIDTH)
    places, valid = ranks(2, 7), torch.ones(2, 7, dtype=torch.bool)
    if kind == "ragged ranks":
        valid = torch.arange(7) < torch.tensor([[7], [3]])
    elif kind == "seconds":
        places = (5 * draw(2, 7, 1)).float()
    elif kind == "a class item first":
        places = torch.cat([torch.zeros(2, 1, 1), places[:, :-1]], 1)
    elif kind == "one after padding":
        valid[1, 1:] = False
        places[1, 1] = 0
    group = at(places, valid)
    block = position.between(group, group, q)
    wanted = formula(name, position, places, places, q).expand(2, -1, -1, -1)
    seen = (valid[:, None, :, None] & valid[:, None, None]).expand_as(wanted)
    for rows, columns in itertools.product((slice(0, 7), slice(2, 3), slice(4, 7)), (slice(0, 7), slice(3, 5))):
        found = block(rows, columns).to(wanted).expand(2, -1, -1, -1)
        real = seen[:, :, rows, columns]
        torch.testing.assert_close(found[real], wanted[:, :, rows, columns][real], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_rows_at_their_ranks_share_one_block(name):
    group = at(ranks(5, 9))
    assert made(name).between(group, group, draw(5, HEADS, 9, WIDTH))(slice(0, 9), slice(0, 9)).shape[0] == 1


def steps(position, q, k, v, cut, lengths=None):
    """Answers of steps that know the new queries and the places of all keys."""
    attention, total = SoftmaxAttention(), q.shape[2]
    state = attention.start(q, total, batch=len(q), heads=HEADS, key=WIDTH, value=WIDTH)
    answers, done, everyone = [], torch.zeros(len(q), dtype=torch.int64), at(ranks(len(q), total))
    lengths = torch.full((len(q),), total) if lengths is None else torch.tensor(lengths)
    for size in cut:
        rank = done[:, None] + torch.arange(size)
        valid, rank = rank < lengths[:, None], rank.clamp(max=total - 1)
        row = torch.arange(len(q))[:, None]
        places = rank[..., None].float()
        piece = [t[row, :, rank].transpose(1, 2) for t in (q, k, v)]
        piece[:2] = [position.rotate(t, places) for t in piece[:2]]
        even = bool(valid.all()) and len(set(done.tolist())) == 1
        first = int(done[0]) if even else done
        bias = position.between(at(places), everyone, piece[0], first=first)
        out, state = attention.step(*piece, state, valid=None if even else valid, bias=bias)
        answers.append(out)
        done = done + valid.sum(1)
    return torch.cat(answers, 2)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cut", [[12], [1] * 12, [5, 7], [3, 1, 8]])
def test_steps_give_what_the_whole_gives(name, cut):
    position = made(name)
    q, k, v = (draw(3, HEADS, 12, WIDTH, seed=s) for s in (1, 2, 3))
    everyone = at(ranks(3, 12))
    turned = [position.rotate(t, everyone.places) for t in (q, k)]
    bias = position.between(everyone, everyone, turned[0])
    whole = SoftmaxAttention()(*turned, v, causal=True, bias=bias)
    torch.testing.assert_close(steps(position, q, k, v, cut), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", KINDS)
def test_ragged_rows_step_as_if_alone(name):
    position, lengths = made(name), [12, 5, 7]
    q, k, v = (draw(3, HEADS, 12, WIDTH, seed=s) for s in (1, 2, 3))
    found = steps(position, q, k, v, [4, 4, 4], lengths)
    for b, n in enumerate(lengths):
        alone = at(ranks(1, n))
        turned = [position.rotate(t[b : b + 1, :, :n], alone.places) for t in (q, k)]
        bias = position.between(alone, alone, turned[0])
        whole = SoftmaxAttention()(*turned, v[b : b + 1, :, :n], causal=True, bias=bias)
        torch.testing.assert_close(found[b, :, :n], whole[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", KINDS)
def test_the_future_changes_nothing_exactly(name):
    position, layer = made(name), MultiheadAttention(HEADS * WIDTH, HEADS)
    initialise(layer, 0)
    layer.double()
    valid = torch.arange(9) < torch.tensor([[9], [6]])

    def answer(items):
        x = Collection.build(items, valid, ranks(2, 9))
        x = x.replace(items=position.add(x.items, x.places))
        return layer(x, causal=True, position=position)

    items = draw(2, 9, HEADS * WIDTH)
    for t in (1, 5, 8):
        later = torch.cat([items[:, :t], 1000 * draw(2, 9 - t, HEADS * WIDTH, seed=7)], 1)
        for learning in (True, False):
            with torch.set_grad_enabled(learning):
                assert torch.equal(answer(later)[:, :t], answer(items)[:, :t])


@pytest.mark.parametrize("name", ["t5", "relative"])
@pytest.mark.parametrize("length", [6, 600])
def test_gradients_reach_what_is_learned_and_the_queries(name, length):
    """Against attention written out; 600 queries are more than one block, which is computed again in the backward."""
    position = made(name)
    x = [draw(2, HEADS, length, WIDTH, seed=s).requires_grad_() for s in (1, 2, 3)]
    valid = torch.arange(length) < torch.tensor([[length], [length - 2]])
    group, upstream = at(ranks(2, length), valid), draw(2, HEADS, length, WIDTH, seed=9)
    found = SoftmaxAttention()(*x, valid=valid, bias=position.between(group, group, x[0]))
    logits = x[0] @ x[1].mT / WIDTH**0.5 + formula(name, position, ranks(2, length), ranks(2, length), x[0])
    wanted = logits.masked_fill(~valid[:, None, None], -torch.inf).softmax(-1) @ x[2]
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)
    learned = [*x, position.table]
    pairs = zip(*(torch.autograd.grad(y, learned, upstream) for y in (found, wanted)), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)


def test_a_query_that_is_not_finite_harms_no_gradient_of_others():
    position = made("relative")
    q, k, v = (draw(1, HEADS, 5, WIDTH, seed=s) for s in (1, 2, 3))
    q[:, :, 3] = torch.nan
    x = [t.requires_grad_() for t in (q, k, v)]
    group = at(ranks(1, 5))
    out = SoftmaxAttention()(*x, bias=position.between(group, group, x[0]))
    keep = torch.tensor([0, 1, 2, 4])
    gradients = torch.autograd.grad(out[:, :, keep].sum(), [k, v, position.table])
    assert all(g.isfinite().all() for g in gradients)


class Sizes(TorchDispatchMode):
    """The most numbers that any tensor made meanwhile holds."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.most = max(self.most, t.untyped_storage().nbytes() // t.element_size())
        return out


@pytest.mark.parametrize("name", ["alibi", "t5", "relative"])
@pytest.mark.parametrize("kind", ["ranks", "seconds"])
@pytest.mark.parametrize("learning", [True, False])
def test_no_tensor_is_as_large_as_all_pairs_times_a_width(name, kind, learning):
    """The logits of a block of 512 queries by offset, and an eighth of room: never L x L x K, nor even H x L x L."""
    length, block = 2048, 512
    position = DISTANCES[name]().float()
    initialise(position, 0)
    x = [draw(1, HEADS, length, WIDTH, seed=s).float().requires_grad_(learning) for s in (1, 2, 3)]
    group = at(ranks(1, length) * (1 if kind == "ranks" else 1.5))
    with Sizes() as sizes, torch.set_grad_enabled(learning):
        out = SoftmaxAttention()(*x, causal=True, bias=position.between(group, group, x[0]))
        if learning:
            out.sum().backward()
    limit = HEADS * block * (2 * length + block) * 9 // 8
    assert limit < HEADS * length * length
    assert sizes.most <= limit, f"{sizes.most:,} numbers, expected at most {limit:,}"


def test_a_stack_refuses_a_bias_that_its_attention_would_not_add():
    class Plain(SoftmaxAttention):
        honours = frozenset({"allowed"})

    for position in (ALiBi(2), T5(2), Relative(2, 4)):
        with pytest.raises(
            ConfigError, match=r"Plain has none to add to.*Use model.attention=softmax, or model.position="
        ):
            Encoder(8, 1, 2, attention=Plain(), position=position)
    for position in (Rotary(), Sinusoidal(8), None):
        Encoder(8, 1, 2, attention=Plain(), position=position)


@pytest.mark.parametrize("position", [ALiBi(4), T5(4), Relative(4, 4), Relative(2, 8)], ids=lambda p: type(p).__name__)
def test_a_stack_refuses_a_position_of_another_size(position):
    for stack in (Encoder, Decoder):
        with pytest.raises(ConfigError, match=r"made for .* Make them with (heads=2|width=4)"):
            stack(8, 1, 2, position=position)


@pytest.mark.parametrize("position", [T5(2), Relative(2, 4)], ids=lambda p: type(p).__name__)
def test_distances_of_several_coordinates_are_refused_where_they_mean_nothing(position):
    x = Collection.build(torch.zeros(1, 3, 8), None, torch.ones(1, 3, 2))
    with pytest.raises(ConfigError, match="these places have 2"):
        Encoder(8, 1, 2, position=position)(x)
    Encoder(8, 1, 2, position=ALiBi(2))(x)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ALiBi(0), "heads=0"),
        (lambda: T5(2, buckets=3), "3 buckets"),
        (lambda: T5(2, longest=4), "longest=4"),
        (lambda: Relative(2, 0), "width=0"),
        (lambda: Relative(2, 4, longest=0), "longest=0"),
    ],
)
def test_positions_that_cannot_be_are_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


@pytest.mark.parametrize("name", ["t5", "relative"])
def test_what_is_learned_is_drawn_from_its_stream_alone(name):
    before = torch.random.get_rng_state()
    first, again = made(name), made(name)
    assert torch.equal(first.table, again.table)
    assert first.table.std() > 0.05
    assert torch.equal(torch.random.get_rng_state(), before)
