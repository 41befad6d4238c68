import itertools
import math

import pytest
import torch
from torch.utils import _pytree

from mapsto import kinds
from mapsto.attention.window import WindowAttention
from mapsto.collection import Collection
from mapsto.errors import ConfigError
from mapsto.functional import band
from mapsto.functional.attention import attend
from mapsto.functional.band import attend_band
from mapsto.nn.multihead import MultiheadAttention
from mapsto.stream import stream
from mapsto.testing import check_attention, require
from mapsto.testing.window import Ledger

SETTINGS = [(1, 0), (3, 0), (8, 2), (40, 0), (3, 2)]


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


def qkv(batch=3, places=12, heads=2, width=4, dtype=torch.float64):
    return tuple(draw(batch, heads, places, width, seed=s, dtype=dtype) for s in (1, 2, 3))


def prefix(lengths, longest):
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def start(attention, q, v, capacity=100):
    return attention.start(q, capacity, batch=q.shape[0], heads=q.shape[1], key=q.shape[3], value=v.shape[3])


def waves(queries, keys):
    """A bias that is no function of the distance, and differs from row to row."""
    l, m = torch.arange(queries.start, queries.stop), torch.arange(keys.start, keys.stop)
    return torch.sin(1.7 * l[:, None] - 0.3 * m).double() * torch.arange(1, 4).view(3, 1, 1, 1)


def cases(length):
    """All that may hide or weigh a key, for three rows."""
    half = prefix([length, length // 2 + 1, 0], length)
    scattered = torch.rand(3, length, generator=stream(4, "test")) > 0.5
    allowed = torch.rand(3, 2, length, length, generator=stream(5, "test")) > 0.4
    decay = -draw(3, 2, length, seed=6).abs()
    segment = torch.arange(length).div(7, rounding_mode="floor").expand(3, length)
    return {
        "plain": {},
        "causal": {"causal": True},
        "prefix": {"valid": half},
        "scattered": {"valid": scattered},
        "scattered causal": {"valid": scattered, "causal": True},
        "allowed": {"allowed": allowed[:1]},
        "scattered allowed": {"valid": scattered, "allowed": allowed},
        "bias": {"bias": waves},
        "scattered bias": {"valid": scattered, "bias": waves},
        "segment": {"valid": scattered, "segment": segment, "causal": True},
        "decay": {"valid": scattered, "decay": decay, "causal": True, "bias": waves},
    }


def exact(q, k, v, window, shared, *, valid=None, allowed=None, **seen):
    """Exact attention, told the band by a loop over all pairs of ranks."""
    batch, _, length, _ = q.shape
    band = torch.zeros(batch, 1, length, length, dtype=torch.bool)
    for b in range(batch):
        places = [i for i in range(length) if valid is None or valid[b, i]]
        for (r, l), (s, m) in itertools.product(enumerate(places), enumerate(places)):
            band[b, 0, l, m] = abs(r - s) < window or min(r, s) < shared
    return attend(q, k, v, valid=valid, allowed=band if allowed is None else band & allowed, **seen)


def agree(found, wanted, tol=1e-10):
    torch.testing.assert_close(found, wanted, atol=tol, rtol=0)


@pytest.fixture(params=["tiled", "folded"])
def form(request, monkeypatch):
    """Both forms, with tiles so small that there are several."""
    monkeypatch.setattr(band, "_tiled", getattr(band, f"_{request.param}"))
    monkeypatch.setattr(band, "ROWS", 8)
    monkeypatch.setattr(band, "SCORES", 500)
    monkeypatch.setattr("mapsto.functional.rank.PIECE", 5)


@pytest.mark.parametrize(("window", "shared"), [(1, 0), (4, 0), (3, 2), (20, 0), (100, 5)])
@pytest.mark.parametrize("length", [1, 7, 16, 37])
@pytest.mark.usefixtures("form")
def test_it_is_exact_attention_over_the_band_with_its_gradients(window, shared, length):
    x = [t.requires_grad_() for t in qkv(places=length)]
    upstream = draw(3, 2, length, 4, seed=9)
    for name, seen in cases(length).items():
        more = list(x)
        if "decay" in seen:
            more.append(seen["decay"].requires_grad_())
        wanted = exact(*x, window, shared, **seen)
        found = attend_band(*x, window=window, shared=shared, **seen)
        agree(found, wanted)
        for a, b in zip(
            torch.autograd.grad(found, more, upstream), torch.autograd.grad(wanted, more, upstream), strict=True
        ):
            assert torch.allclose(a, b, atol=1e-10, rtol=0), name
        with torch.no_grad():
            agree(attend_band(*x, window=window, shared=shared, **seen), wanted)


def test_a_learned_bias_gets_its_gradient_from_every_tile(monkeypatch):
    monkeypatch.setattr(band, "ROWS", 8)
    q, k, v = qkv(places=30)
    slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def learned(queries, keys):
        return slope * waves(queries, keys)

    found, wanted = (
        torch.autograd.grad(out.square().sum(), slope)[0]
        for out in (
            attend_band(q, k, v, window=5, bias=learned, causal=True),
            exact(q, k, v, 5, 0, bias=learned, causal=True),
        )
    )
    agree(found, wanted, 1e-8)


@pytest.mark.parametrize(("window", "shared"), SETTINGS)
def test_the_laws_hold(window, shared):
    require(check_attention(lambda: WindowAttention(window, shared), laws="PBSCTMKDRW"))


@pytest.mark.parametrize(("window", "shared"), [(8, 2), pytest.param(3, 0, marks=pytest.mark.slow)])
def test_one_graph_serves_all_lengths(window, shared):
    require(check_attention(lambda: WindowAttention(window, shared), laws="G"))


def test_a_query_that_is_no_item_gets_zeros_and_what_stands_there_changes_nothing():
    valid = torch.tensor([[True, False, True, True, False, True]])
    x = [t.masked_fill(~valid[:, None, :, None], torch.nan).requires_grad_() for t in qkv(1, 6)]
    out = WindowAttention(2)(*x, valid=valid)
    assert (out[:, :, ~valid[0]] == 0).all()
    for gradient in torch.autograd.grad(out.sum(), x):
        assert (gradient[:, :, ~valid[0]] == 0).all()
        assert gradient.isfinite().all()


def test_a_query_that_is_not_finite_spoils_only_its_own_answer():
    q, k, v = qkv()
    q[1, 0, 3] = torch.inf
    x = [t.requires_grad_() for t in (q, k, v)]
    out = WindowAttention(4)(*x)
    assert out[1, 0, 3].isnan().all()
    used = out[:, :, [0, 1, 2, *range(4, 12)]]
    assert used.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(used.sum(), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_computed_in_float32(dtype):
    q, k, v = qkv(places=300, dtype=dtype)
    out = WindowAttention(20)(q, k, v, causal=True)
    assert out.dtype == dtype
    wanted = WindowAttention(20)(q.float(), k.float(), v.float(), causal=True)
    assert torch.equal(out, wanted.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(WindowAttention(20)(q.float(), k.float(), v.float(), causal=True), wanted)


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_at_a_length_of_16384_no_tensor_holds_more_than_length_times_window(shared, causal):
    length, window, heads, width = 16_384, 32, 2, 8
    place = torch.arange(length)
    seen = {
        "valid": (place < length - 3)[None],
        "bias": lambda l, m: -0.01 * (place[l][:, None] - place[m]).abs()[None, None].float(),
    }
    if causal:
        seen["decay"] = -draw(1, heads, length, dtype=torch.float32).abs().requires_grad_()
    x = [t.requires_grad_() for t in qkv(1, length, heads, width, torch.float32)]
    with Ledger() as ledger:
        WindowAttention(window, shared)(*x, causal=causal, **seen).sum().backward()
    assert ledger.largest <= heads * length * window
    assert all(t.grad.isfinite().all() for t in x)


def test_steps_of_any_size_with_a_bias_give_the_whole():
    q, k, v = qkv(places=30)
    attention = WindowAttention(5, shared=2)
    whole = attention(q, k, v, causal=True, bias=waves)
    for sizes in ([1] * 30, [7] * 4 + [2], [3, 20, 7], [30]):
        state, parts, place = start(attention, q, v), [], 0
        for size in sizes:
            piece = slice(place, place + size)
            out, state = attention.step(q[:, :, piece], k[:, :, piece], v[:, :, piece], state, bias=waves)
            parts.append(out)
            place += size
        agree(torch.cat(parts, 2), whole)


def test_a_prefill_longer_than_a_piece_gives_the_whole():
    q, k, v = qkv(batch=1, places=200)
    attention = WindowAttention(9)
    _, state = attention.step(q[:, :, :5], k[:, :, :5], v[:, :, :5], start(attention, q, v))
    out, state = attention.step(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], state)
    agree(out, attention(q, k, v, causal=True)[:, :, 5:])
    assert state.length.tolist() == [200]


def test_ragged_rows_with_a_bias_step_as_if_alone():
    q, k, v = qkv(places=20)
    attention, lengths = WindowAttention(4, shared=1), [9, 3, 0]
    _, state = attention.step(q[:, :, :9], k[:, :, :9], v[:, :, :9], start(attention, q, v), valid=prefix(lengths, 9))
    out, state = attention.step(q[:, :, 9:12], k[:, :, 9:12], v[:, :, 9:12], state, bias=waves)
    out_of_one, state = attention.step(q[:, :, 12:13], k[:, :, 12:13], v[:, :, 12:13], state, bias=waves)
    for b, n in enumerate(lengths):
        keep = [*range(n), 9, 10, 11, 12]

        def own(queries, keys, b=b):
            return waves(queries, keys)[b : b + 1]

        alone = attention(*(t[b : b + 1, :, keep] for t in (q, k, v)), causal=True, bias=own)
        agree(out[b], alone[0, :, n : n + 3])
        agree(out_of_one[b], alone[0, :, n + 3 :])


def test_a_state_holds_the_window_however_much_is_written():
    q, k, v = qkv(places=12)
    attention = WindowAttention(3, shared=2)
    state = start(attention, q, v, capacity=12)
    for _ in range(5):
        state = attention.write(k, v, state)
    assert state.length.tolist() == [60] * 3
    assert state.keys.shape[2] == 3 + 2 + 1
    ranks = state.ranks()
    assert ranks.sort(1).values.tolist() == [[0, 1, 57, 58, 59]] * 3
    for place, rank in enumerate(ranks[0].tolist()):
        assert torch.equal(state.keys[0, :, place], k[0, :, rank % 12])


def test_a_capacity_shorter_than_the_window_is_an_end():
    q, k, v = qkv()
    attention = WindowAttention(100)
    state = attention.write(k[:, :, :8], v[:, :, :8], start(attention, q, v, capacity=10))
    assert state.ring == 10
    with pytest.raises(ConfigError, match=r"holds 10 places a row, 8 are written and 3 more came.*at least 11"):
        attention.step(q[:, :, :3], k[:, :, :3], v[:, :, :3], state)


def test_a_state_goes_through_a_pytree():
    q, k, v = qkv()
    attention = WindowAttention(3, shared=1)
    _, state = attention.step(q, k, v, start(attention, q, v))
    leaves, spec = _pytree.tree_flatten(state)
    again = _pytree.tree_unflatten([t.clone() for t in leaves], spec)
    one = [t[:, :, :1] for t in (q, k, v)]
    assert torch.equal(attention.step(*one, again)[0], attention.step(*one, state)[0])


def test_cross_attention_and_reading_are_refused_with_a_way_out():
    q, k, v = qkv()
    attention = WindowAttention(3)
    with pytest.raises(ConfigError, match=r"3 queries and 12 keys\. Use attention=softmax"):
        attention(q[:, :, :3], k, v)
    with pytest.raises(ConfigError, match=r"no ranks in common\. Use attention=softmax"):
        attention.read(q, attention.write(k, v, start(attention, q, v)))


def test_shared_items_of_packed_documents_are_refused():
    segment = torch.zeros(3, 12, dtype=torch.int64)
    assert "segment" in WindowAttention(3).honours
    assert "segment" not in WindowAttention(3, shared=1).honours
    with pytest.raises(ConfigError, match="shared=1 first items belong to one document"):
        WindowAttention(3, shared=1)(*qkv(), segment=segment, causal=True)


def test_it_is_kind_window_and_works_in_a_layer():
    made = kinds.make("attention", "window:3,shared=2")
    assert isinstance(made, WindowAttention)
    assert made.settings() == {"window": 3, "shared": 2, "beta": None}
    layer = MultiheadAttention(8, 2, attention=made).double()
    x = Collection.build(draw(3, 9, 8), prefix([9, 4, 0], 9))
    wide = MultiheadAttention(8, 2).double()
    wide.load_state_dict(layer.state_dict())
    agree(layer(x)[1, :4], wide(x)[1, :4])  # four items, of which two are shared and the others are near
    assert not torch.allclose(layer(x)[0], wide(x)[0])
    assert layer(x, causal=True).shape == (3, 9, 8)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"window": 0}, "window"),
        ({"window": 2.5}, "window"),
        ({"window": True}, "window"),
        ({"shared": -1}, "shared"),
        ({"beta": math.nan}, "beta"),
    ],
)
def test_settings_that_are_no_window_are_refused(settings, name):
    with pytest.raises(ConfigError, match=rf"attention\.{name}="):
        WindowAttention(**settings)
