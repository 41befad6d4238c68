"""Memories in place of attention: the lectures' formulas by loops, padding, causality, steps, and blocks made of them."""

import math

import pytest
import torch

from mapsto.attention.softmax import SoftmaxAttention
from mapsto.collection import Collection
from mapsto.errors import ConfigError
from mapsto.nn.initial import initialise
from mapsto.nn.memory import CompositeMemory, GatedMemory, Recall, half_lives
from mapsto.nn.position import Rotary, Sinusoidal
from mapsto.nn.transformer import Decoder, Encoder
from mapsto.stream import stream

DIM, WIDTH = 6, 4
MEMORIES = {
    "composite": lambda: CompositeMemory(DIM, WIDTH),
    "fixed": lambda: CompositeMemory(DIM, WIDTH, forget=0.7),
    "a sum": lambda: CompositeMemory(DIM, WIDTH, forget=1.0),
    "gated": lambda: GatedMemory(DIM, WIDTH),
}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64)


def shaken(module):
    """Seeded weights, norms and biases included, in float64."""
    initialise(module, 0)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=stream(1, name)))
    return module.double().eval()


def collection(lengths, seed=0):
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Collection.build(draw(*valid.shape, DIM, seed=seed), valid)


def formula(name, memory, row):
    """h of one row, as the lectures write it."""
    answers = []
    for t in range(len(row)):
        if name == "gated":
            extended = torch.cat([row[t], torch.ones(1).double()])
            theta = torch.cat([memory.linear.weight, memory.bias[:, None]], 1)
            before = answers[-1] if answers else torch.zeros(WIDTH).double()
            answers.append(torch.sigmoid(theta[:WIDTH] @ extended) * before + theta[WIDTH:] @ extended)
        else:
            gamma = {"fixed": 0.7, "a sum": 1.0}.get(name)
            gamma = torch.sigmoid(memory.keep) if gamma is None else gamma
            answers.append(sum(gamma ** (t - i) * (memory.linear.weight @ row[i]) for i in range(t + 1)))
    return torch.stack(answers)


@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_is_the_lectures_formula_forwards_and_backwards(name):
    memory, x = shaken(MEMORIES[name]()), collection([20, 7, 1])
    for reverse in (False, True):
        found = memory(x, reverse=reverse)
        for b, n in enumerate([20, 7, 1]):
            row = x.items[b, :n].flip(0) if reverse else x.items[b, :n]
            wanted = formula(name, memory, row)
            torch.testing.assert_close(found[b, :n], wanted.flip(0) if reverse else wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("lengths", [[20, 7, 0, 1], [3], [0, 0]])
def test_packed_rows_are_remembered_as_padded_ones(name, lengths):
    memory, x = shaken(MEMORIES[name]()), collection([*lengths, 1])
    for groups in (1, 3):
        packed = x.pack(groups)
        for reverse in (False, True):
            found = memory(packed, reverse=reverse)
            torch.testing.assert_close(found, memory(x, reverse=reverse)[x.valid], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MEMORIES)
def test_padding_is_neither_written_nor_forgotten(name):
    """Wherever it stands: two halves with padding between them are one row."""
    memory, row = shaken(MEMORIES[name]()), draw(1, 9, DIM)
    apart = torch.cat([row[:, :4], 7 * torch.ones(1, 5, DIM).double(), row[:, 4:]], 1)
    valid = torch.tensor([[True] * 4 + [False] * 5 + [True] * 5])
    wanted = memory(Collection.build(row))
    found = memory(Collection(apart, valid))
    torch.testing.assert_close(found[valid], wanted[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MEMORIES)
def test_the_future_changes_nothing_exactly(name):
    layer = shaken(Recall(lambda dim, _: MEMORIES[name](), WIDTH, both=False))
    items = draw(2, 40, DIM)
    for t in (1, 16, 39):
        later = torch.cat([items[:, :t], 1000 * draw(2, 40 - t, DIM, seed=7)], 1)
        found = layer(Collection.build(later), causal=True)
        assert torch.equal(found[:, :t], layer(Collection.build(items), causal=True)[:, :t])


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("cut", [[20], [1] * 20, [5, 15], [16, 1, 3], [19, 1]])
def test_any_cutting_into_steps_gives_the_whole(name, cut):
    layer = shaken(Recall(lambda dim, _: MEMORIES[name](), WIDTH, both=False))
    items = draw(3, 20, DIM)
    state, parts = layer.start(items, 3), []
    for piece in items.split(cut, 1):
        out, state = layer.step(piece, state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), layer(Collection.build(items)), atol=1e-12, rtol=0)
    assert state.shape == (3, WIDTH)  # whatever the length


@pytest.mark.parametrize("name", MEMORIES)
def test_ragged_rows_step_as_if_alone_in_any_order_of_beams(name):
    memory, lengths = shaken(MEMORIES[name]()), [12, 5, 0]
    items, state, done = draw(3, 12, DIM), None, [0, 0, 0]
    state, answers = memory.start(items, 3), [[], [], []]
    for _ in range(4):
        taken = [min(3, n - d) for n, d in zip(lengths, done, strict=True)]
        piece = torch.full((3, 3, DIM), torch.nan, dtype=torch.float64)
        for b, n in enumerate(taken):
            piece[b, :n] = items[b, done[b] : done[b] + n]
        out, state = memory.step(piece, state, valid=torch.arange(3) < torch.tensor(taken)[:, None])
        for b, n in enumerate(taken):
            answers[b].append(out[b, :n])
            done[b] += n
    for b, n in enumerate(lengths):
        torch.testing.assert_close(
            torch.cat(answers[b]), memory(Collection.build(items[b : b + 1, :n]))[0], atol=1e-12, rtol=0
        )
    order = torch.tensor([1, 1, 0])
    out, _ = memory.step(items[order, 5:6], state[order])
    again = torch.cat([items[1:2, :5], items[1:2, 5:6]], 1)
    torch.testing.assert_close(out[0], memory(Collection.build(again))[0, -1:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MEMORIES)
def test_gradients_reach_every_weight_and_agree_with_the_formulas(name):
    memory, x = shaken(MEMORIES[name]()), collection([18])
    upstream = draw(18, WIDTH, seed=3)
    learned = list(memory.parameters())
    found = torch.autograd.grad(memory(x)[0], learned, upstream)
    wanted = torch.autograd.grad(formula(name, memory, x.items[0]), learned, upstream)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)


def test_new_memories_forget_half_after_1_to_512_items():
    gamma = torch.sigmoid(half_lives(10).double())
    wanted = [0.5 ** (1 / 512 ** (i / 9)) for i in range(10)]
    torch.testing.assert_close(gamma, torch.tensor(wanted, dtype=torch.float64), atol=1e-7, rtol=0)
    memory = GatedMemory(DIM, 10)
    initialise(memory, 0)
    assert torch.equal(memory.bias[:10], half_lives(10))
    assert not memory.bias[10:].any()


def test_long_rows_are_remembered_in_float32_whatever_the_type():
    memory = CompositeMemory(1, 1, forget=1.0)
    torch.nn.init.ones_(memory.linear.weight)
    memory.bfloat16().requires_grad_(False)
    ones = torch.ones(1, 4096, 1, dtype=torch.bfloat16)
    assert float(memory(Collection.build(ones))[0, -1, 0]) == 4096
    state = memory.start(ones, 1)
    for piece in ones.split(512, 1):
        out, state = memory.step(piece, state)
    assert out.dtype == torch.bfloat16
    assert float(state) == 4096


@pytest.mark.parametrize("both", [False, True])
def test_an_encoder_of_memories_is_blocks_of_its_parts(both):
    encoder = shaken(Encoder(DIM, 2, 2, mixer=lambda: Recall(GatedMemory, DIM, both=both), hidden=12))
    x = collection([9, 4])
    items = x.items
    for block in encoder.blocks:
        one = Collection(block.attention_norm(items), x.valid)
        recall = block.attention
        h = recall.ahead(one)
        if both:
            assert recall.ahead.width == recall.back.width == DIM // 2
            h = torch.cat([h, recall.back(one, reverse=True)], -1)
        items = items + recall.out(recall.norm(h))
        items = items + block.feedforward(block.feedforward_norm(items))
    wanted = encoder.norm(items)
    torch.testing.assert_close(encoder(x).items[x.valid], wanted[x.valid], atol=1e-12, rtol=0)
    assert encoder.ordered
    assert not Encoder(DIM, 1, 2).ordered


def test_a_decoder_may_remember_its_own_queries():
    decoder = shaken(Decoder(DIM, 1, 2, mixer=lambda: Recall(GatedMemory, DIM, both=False)))
    queries, memory = collection([5, 3]), collection([4, 6], seed=1)
    found = decoder(queries, memory, causal=True)
    changed = queries.replace(items=torch.cat([queries.items[:, :2], 9 + queries.items[:, 2:]], 1))
    assert torch.equal(decoder(changed, memory, causal=True)[:, :2], found[:, :2])
    assert not torch.allclose(decoder(queries, memory[torch.tensor([1, 0])], causal=True), found)


def test_both_ways_is_refused_where_the_future_is_not_known():
    recall = Recall(GatedMemory, DIM)
    with pytest.raises(ConfigError, match=r"reads both ways has seen what comes later. Make it with both=False"):
        Encoder(DIM, 1, 2, mixer=lambda: recall)(Collection.build(torch.zeros(1, 3, DIM)), causal=True)
    with pytest.raises(ConfigError, match=r"cannot go step by step. Make it with both=False"):
        recall.step(torch.zeros(1, 1, DIM), torch.zeros(1, DIM))
    with pytest.raises(ConfigError, match=r"model.dim=5: .* needs an even width"):
        Recall(GatedMemory, 5)


@pytest.mark.parametrize("forget", [0.0, -0.1, 1.1, math.nan])
def test_a_forgetting_that_is_none_is_refused(forget):
    with pytest.raises(ConfigError, match="forget="):
        CompositeMemory(4, forget=forget)


def test_what_a_memory_has_no_use_for_is_refused():
    def make():
        return Recall(GatedMemory, 4)

    with pytest.raises(ConfigError, match=r"Rotary positions are for attention.*Use model.position=none"):
        Encoder(4, 1, 2, mixer=make, position=Rotary())
    with pytest.raises(ConfigError, match="has no use for attention= or normalise="):
        Encoder(4, 1, 2, mixer=make, attention=SoftmaxAttention())
    with pytest.raises(ConfigError, match="has no use for attention= or normalise="):
        Encoder(4, 1, 2, mixer=make, normalise=True)
    Encoder(4, 1, 2, mixer=make, position=Sinusoidal(4))
