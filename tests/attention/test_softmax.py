import pytest
import torch
from torch.utils import _pytree

from mapsto import kinds
from mapsto.attention.softmax import SoftmaxAttention
from mapsto.errors import ConfigError
from mapsto.stream import stream


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


def qkv(batch=3, places=12, dtype=torch.float64):
    return tuple(draw(batch, 2, places, 4, seed=s, dtype=dtype) for s in (1, 2, 3))


def prefix(lengths, longest):
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def start(attention, q, v, capacity):
    return attention.start(q, capacity, batch=q.shape[0], heads=q.shape[1], key=q.shape[3], value=v.shape[3])


def alibi(queries, keys):
    distance = torch.arange(queries.start, queries.stop)[:, None] - torch.arange(keys.start, keys.stop)
    return -0.3 * distance.abs()[None, None].double() * torch.tensor([1.0, 0.5]).double()[:, None, None]


CUTS = [[12], [1] * 12, [5, 7], [4, 4, 4], [3, 4, 5], [11, 1], [1, 11]]


@pytest.mark.parametrize("bias", [None, alibi])
@pytest.mark.parametrize("cut", CUTS)
def test_any_cutting_into_steps_gives_the_whole(cut, bias):
    q, k, v = qkv()
    attention = SoftmaxAttention()
    whole = attention(q, k, v, causal=True, bias=bias)
    state, parts, place = start(attention, q, v, 12), [], 0
    for size in cut:
        piece = slice(place, place + size)
        out, state = attention.step(q[:, :, piece], k[:, :, piece], v[:, :, piece], state, bias=bias)
        parts.append(out)
        place += size
    torch.testing.assert_close(torch.cat(parts, 2), whole, atol=1e-10, rtol=0)
    assert (state.length == 12).all()


@pytest.mark.parametrize("bias", [None, alibi])
@pytest.mark.parametrize("cut", CUTS)
def test_ragged_rows_step_as_if_alone(cut, bias):
    """Each piece holds the next places of each row, valid ones first, and garbage behind them."""
    q, k, v = qkv()
    attention, lengths = SoftmaxAttention(), [12, 5, 0]
    state, done = start(attention, q, v, 12), [0, 0, 0]
    answers = [[], [], []]
    for size in cut:
        most = [size, (size + 1) // 2, size]
        taken = [min(m, n - d) for m, n, d in zip(most, lengths, done, strict=True)]
        piece = [torch.full((3, 2, size, 4), float("nan"), dtype=torch.float64) for _ in range(3)]
        for b, n in enumerate(taken):
            for mine, theirs in zip(piece, (q, k, v), strict=True):
                mine[b, :, :n] = theirs[b, :, done[b] : done[b] + n]
        out, state = attention.step(*piece, state, valid=prefix(taken, size), bias=bias)
        for b, n in enumerate(taken):
            answers[b].append(out[b, :, :n])
            done[b] += n
    assert state.length.tolist() == done
    for b, n in enumerate(done):
        alone = attention(q[b : b + 1, :, :n], k[b : b + 1, :, :n], v[b : b + 1, :, :n], causal=True, bias=bias)
        torch.testing.assert_close(torch.cat(answers[b], 1), alone[0], atol=1e-10, rtol=0)


def test_steps_go_on_after_beams_are_reordered():
    q, k, v = qkv()
    attention, order = SoftmaxAttention(), torch.tensor([2, 0, 0, 1])
    state = start(attention, q, v, 12)
    _, state = attention.step(q[:, :, :7], k[:, :, :7], v[:, :, :7], state, valid=prefix([7, 4, 6], 7))
    state = state.select(order)
    assert state.length.tolist() == [6, 7, 7, 4]
    out, state = attention.step(q[order, :, 7:9], k[order, :, 7:9], v[order, :, 7:9], state)
    for row, (b, n) in enumerate([(2, 6), (0, 7), (0, 7), (1, 4)]):
        keep = [*range(n), 7, 8]
        alone = attention(q[b : b + 1, :, keep], k[b : b + 1, :, keep], v[b : b + 1, :, keep], causal=True)
        torch.testing.assert_close(out[row], alone[0, :, -2:], atol=1e-10, rtol=0)


@pytest.mark.parametrize("lengths", [None, [12, 5, 0]])
def test_reading_a_written_memory_is_cross_attention(lengths):
    q, k, v = qkv()
    attention = SoftmaxAttention(beta=0.7)
    valid = None if lengths is None else prefix(lengths, 12)
    state = start(attention, q, v, 12)
    for piece in (slice(0, 5), slice(5, 12)):
        state = attention.write(k[:, :, piece], v[:, :, piece], state, valid=None if valid is None else valid[:, piece])
    torch.testing.assert_close(attention.read(q[:, :, :3], state), attention(q[:, :, :3], k, v, valid=valid))
    assert state.filled == 12


def test_growth_beyond_the_capacity_is_refused_with_the_numbers():
    q, k, v = qkv()
    attention = SoftmaxAttention()
    state = attention.write(k[:, :, :8], v[:, :, :8], start(attention, q, v, 10))
    with pytest.raises(ConfigError, match=r"holds 10 places a row, 8 are written and 3 more came.*at least 11"):
        attention.step(q[:, :, :3], k[:, :, :3], v[:, :, :3], state)


def test_ragged_pieces_fill_the_capacity_to_its_last_place():
    q, k, v = qkv()
    attention = SoftmaxAttention()
    state = start(attention, q, v, 6)
    for lengths in ([2, 4, 0], [4, 2, 0], [0, 0, 4]):
        state = attention.write(k[:, :, :4], v[:, :, :4], state, valid=prefix(lengths, 4))
    assert state.length.tolist() == [6, 6, 4]
    assert attention.read(q, state).isfinite().all()


def test_an_empty_state_answers_zeros():
    q, _, v = qkv()
    attention = SoftmaxAttention()
    assert (attention.read(q, start(attention, q, v, 4)) == 0).all()


def test_the_state_is_a_pytree_that_survives_the_round_trip():
    q, k, v = qkv()
    attention = SoftmaxAttention()
    state = attention.write(k, v, start(attention, q, v, 20), valid=prefix([12, 5, 0], 12))
    leaves, spec = _pytree.tree_flatten(state)
    assert len(leaves) == 3
    again = _pytree.tree_unflatten([t.clone() for t in leaves], spec)
    assert torch.equal(attention.read(q, again), attention.read(q, state))


def test_a_step_in_bfloat16_keeps_a_bfloat16_cache():
    q, k, v = qkv(dtype=torch.bfloat16)
    attention = SoftmaxAttention()
    out, state = attention.step(q, k, v, start(attention, q, v, 12))
    assert out.dtype == state.keys.dtype == torch.bfloat16
    assert torch.equal(out, attention(q, k, v, causal=True))


def test_weights_are_those_of_the_formula():
    q, k, v = qkv()
    attention, valid = SoftmaxAttention(), prefix([12, 5, 1], 12)
    weights = attention.weights(q, k, valid=valid, causal=True)
    seen = valid[:, None, None] & torch.ones(12, 12).tril().bool()
    logits = (q @ k.transpose(-1, -2) / 2).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(weights, logits.softmax(-1), atol=1e-10, rtol=0)
    torch.testing.assert_close(weights @ v, attention(q, k, v, valid=valid, causal=True), atol=1e-10, rtol=0)


def test_a_large_beta_picks_one_key_and_zero_beta_is_the_mean():
    q, k, v = qkv()
    best = (q @ k.transpose(-1, -2)).argmax(-1)
    picked = v.gather(2, best[..., None].expand(-1, -1, -1, 4))
    torch.testing.assert_close(SoftmaxAttention(beta=1e5)(q, k, v), picked)
    torch.testing.assert_close(SoftmaxAttention(beta=0.0)(q, k, v), v.mean(2, keepdim=True).expand_as(v))


def test_it_is_kind_softmax_and_binds_afresh():
    assert kinds.find("attention", "softmax") is SoftmaxAttention
    made = kinds.make("attention", "softmax:2.5")
    assert made.settings() == {"beta": 2.5}
    bound = made.bind(2, 4)
    assert bound is not made
    assert bound.settings() == made.settings()
    assert made.honours == {"allowed", "bias", "decay", "segment"}
    assert not made.state_dict()


@pytest.mark.parametrize("beta", [-1.0, float("nan"), float("inf")])
def test_a_beta_that_is_no_temperature_is_refused(beta):
    with pytest.raises(ConfigError, match=r"attention\.beta"):
        SoftmaxAttention(beta)
