import itertools

import pytest
import torch

from mapsto.attention.window import WindowAttention
from mapsto.functional import band
from mapsto.functional.attention import attend
from mapsto.functional.band import attend_band
from mapsto.stream import stream
from mapsto.testing import check_attention, require

SETTINGS = [(1, 0), (3, 0), (8, 2), (40, 0), (3, 2)]


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


def qkv(batch=3, places=12, heads=2, width=4, dtype=torch.float64):
    return tuple(draw(batch, heads, places, width, seed=s, dtype=dtype) for s in (1, 2, 3))


def prefix(lengths, longest):
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


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
    require(check_attention(lambda: WindowAttention(window, shared), laws="PBSCTMKDR"))


@pytest.mark.parametrize(("window", "shared"), [(8, 2), pytest.param(3, 0, marks=pytest.mark.slow)])
def test_one_graph_serves_all_lengths(window, shared):
    require(check_attention(lambda: WindowAttention(window, shared), laws="G"))
