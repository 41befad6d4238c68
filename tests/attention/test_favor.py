import copy

import pytest
import torch

from mapsto import kinds
from mapsto.attention import favor
from mapsto.attention.favor import FavorAttention
from mapsto.errors import ConfigError
from mapsto.functional import retrieval
from mapsto.functional.attention import attend
from mapsto.functional.causal import linear_causal
from mapsto.functional.feature import exponential, generalised, hyperbolic, positive
from mapsto.nn.multihead import MultiheadAttention
from mapsto.stream import stream
from mapsto.testing import check_attention, require


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


def qkv(batch=2, places=150, width=8, dtype=torch.float64, scale=1.0):
    return [scale * draw(batch, 2, places, width, seed=s, dtype=dtype) for s in (1, 2, 3)]


def written_out(layer, maps, q, k, v, *, causal=False, seen=None):
    """Σ_m φ(q)·φ(k_m) v_m / Σ_m φ(q)·φ(k_m), all pairs, by a map of functional.feature."""
    omega, scale = layer.omega.double(), q.shape[-1] ** -0.25
    weights = maps(q * scale, omega) @ maps(k * scale, omega).transpose(-1, -2)
    if causal:
        weights = weights.tril()
    if seen is not None:
        weights = weights * seen
    return weights @ v / weights.sum(-1, keepdim=True)


MAPS = {
    "positive": positive,
    "hyperbolic": hyperbolic,
    "relu": generalised,
    "softplus": lambda x, omega: generalised(x, omega, kernel="softplus"),
    "optimal": lambda x, omega: exponential(
        x, favor.Exponential.optimal(omega, favor.optimal_shape(x.shape[-1] ** 0.5, x.shape[-1]))
    ),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature", MAPS)
def test_answers_and_gradients_are_those_of_the_features_written_out(feature, causal):
    layer = FavorAttention(20, feature=feature).bind(2, 8, stream(0, "test")).double()
    x = [t.requires_grad_() for t in qkv()]
    found, wanted = layer(*x, causal=causal), written_out(layer, MAPS[feature], *x, causal=causal)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-9)
    upstream = draw(*found.shape, seed=5)
    for a, b in zip(torch.autograd.grad(found, x, upstream), torch.autograd.grad(wanted, x, upstream), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-7)


def test_every_law_holds_for_a_kernel_of_its_own():
    require(check_attention(lambda: FavorAttention(16, feature="relu"), laws="PBSCTMKDR"))


@pytest.mark.parametrize("options", [{"feature": "positive"}, {"feature": "hyperbolic"}, {"coupling": "iid"}])
def test_the_laws_of_values_hold_for_the_other_features(options):
    require(check_attention(lambda: FavorAttention(24, **options), laws="PCTM"))


def test_packed_documents_do_not_see_each_other_whatever_their_sizes_and_order():
    layer = FavorAttention(20).bind(2, 8).double()
    x = [t.requires_grad_() for t in qkv(places=200)]
    with torch.no_grad():
        x[1][:, :, :90] *= 6  # keys whose logarithms are far below those that follow
    segment = torch.stack([torch.arange(200) // 90, torch.randint(0, 3, (200,), generator=stream(0, "segments"))])
    seen = segment[:, None, :, None] == segment[:, None, None]
    found, wanted = (
        layer(*x, causal=True, segment=segment),
        written_out(layer, MAPS["optimal"], *x, causal=True, seen=seen),
    )
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-8)
    upstream = draw(*found.shape, seed=5)
    for a, b in zip(torch.autograd.grad(found, x, upstream), torch.autograd.grad(wanted, x, upstream), strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-6)


def test_more_features_come_closer_to_exact_attention():
    q, k, v = qkv(places=128, scale=0.5)
    exact = attend(q, k, v)
    errors = [
        float(torch.stack([(FavorAttention(m, seed=s)(q, k, v) - exact).square().mean() for s in range(8)]).mean())
        for m in (8, 64, 512, 4096)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 50


@pytest.mark.parametrize("width", [16, 64, 256])
def test_ten_thousand_steps_with_large_queries_and_keys_stay_finite(width):
    layer = FavorAttention(32).bind(1, width)
    state = layer.start(torch.zeros(1), 0, batch=1, heads=1, key=width, value=4)
    for piece in range(10):
        q, k = (draw(1, 1, 1000, width, seed=2 * piece + s, dtype=torch.float32) for s in (0, 1))
        q, k = (30 * torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
        if piece % 2:
            k = -q
        out, state = layer.step(q, k, draw(1, 1, 1000, 4, seed=piece, dtype=torch.float32), state)
        assert out.isfinite().all()
        assert (state.weights > 0).all()
    for t in range(50):
        out, state = layer.step(q[:, :, t : t + 1], k[:, :, t : t + 1], out[:, :, :1], state)
        assert out.isfinite().all()
    assert int(state.length) == 10_050


def test_one_key_is_answered_with_its_value_however_far_it_is():
    layer = FavorAttention(32).bind(1, 16)
    q = torch.full((1, 1, 1, 16), 7.5)
    v = torch.tensor([[[[3.0, -5.0]]]])
    for causal in (False, True):
        torch.testing.assert_close(layer(q, -q, v, causal=causal), v)


@pytest.mark.parametrize("causal", [False, True])
def test_a_long_sequence_keeps_its_digits(causal):
    layer = FavorAttention(16).bind(1, 8)
    x = [draw(1, 1, 32_768, 8, seed=s, dtype=torch.float32) for s in (1, 2, 3)]
    wanted = copy.deepcopy(layer).double()(*(t.double() for t in x), causal=causal)
    error = (layer(*x, causal=causal).double() - wanted).norm() / wanted.norm()
    assert error < 1e-4


def test_the_state_does_not_grow():
    layer = FavorAttention(16).bind(2, 8)
    q, k, v = qkv(dtype=torch.float32)
    state = layer.start(q, 10**9, batch=2, heads=2, key=8, value=8)
    before = state.values.numel() + state.weights.numel()
    _, state = layer.step(q, k, v, state)
    assert state.values.numel() + state.weights.numel() == before == 2 * 2 * 16 * 9


def test_features_are_drawn_anew_every_so_many_steps_as_a_function_of_the_step():
    layer, again = (FavorAttention(16, redraw=10).bind(2, 8) for _ in range(2))
    seen = []
    for step in range(25):
        layer.renew(3, 1, step)
        seen.append(layer.omega.clone())
    assert all(torch.equal(seen[0], t) for t in seen[:10])
    assert not torch.equal(seen[9], seen[10])
    assert not torch.equal(seen[0], seen[20])
    again.renew(3, 1, 17)
    assert torch.equal(again.omega, seen[17])
    again.renew(3, 2, 17)
    other = FavorAttention(16, redraw=10).bind(2, 8)
    other.renew(3, 2, 17)
    assert not torch.equal(other.omega, seen[17])


def test_without_redraw_nothing_is_ever_drawn_anew():
    layer = FavorAttention(16).bind(2, 8)
    before = layer.omega.clone()
    for step in (0, 1, 1000):
        layer.renew(0, 0, step)
    assert torch.equal(layer.omega, before)


def test_unbound_it_draws_from_its_seed_alone():
    x = qkv(dtype=torch.float32)
    state = torch.random.get_rng_state()
    assert torch.equal(FavorAttention(16, seed=4)(*x), FavorAttention(16, seed=4)(*x))
    assert not torch.equal(FavorAttention(16, seed=4)(*x), FavorAttention(16, seed=5)(*x))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_features_are_in_the_state_dict_and_layers_have_their_own():
    layer = MultiheadAttention(16, 2, attention=FavorAttention(12))
    assert layer.state_dict()["attention.omega"].shape == (12, 8)
    first, second = (FavorAttention(12).bind(2, 8, stream(0, "test", i)) for i in range(2))
    assert not torch.equal(first.omega, second.omega)


@pytest.mark.parametrize("feature", ["trigonometric", "gaussian"])
def test_features_whose_normaliser_crosses_zero_are_for_figures_only(feature):
    assert FavorAttention(64, feature=feature)(*qkv()).shape == (2, 2, 150, 8)
    with pytest.raises(ConfigError, match=r"crosses zero.*Use optimal, positive or hyperbolic"):
        MultiheadAttention(16, 2, attention=FavorAttention(64, feature=feature))


def test_settings_are_read_as_they_are_typed():
    made = kinds.make("attention", "favor:64,feature=relu,redraw=100")
    assert made.settings() == {"features": 64, "feature": "relu", "coupling": "orthogonal", "redraw": 100, "seed": 0}
    with pytest.raises(ConfigError, match=r"Did you mean .relu"):
        kinds.make("attention", "favor:64,feature=rleu")
    with pytest.raises(ConfigError, match="takes features=, feature=, coupling=, redraw=, seed="):
        kinds.make("attention", "favor:64,faetures=relu")
    with pytest.raises(ConfigError, match=r"attention\.features=0: expected a whole number from 1 to 65,536"):
        kinds.make("attention", "favor:0")


@pytest.mark.parametrize("given", ["allowed", "bias"])
def test_a_mask_is_refused_never_dropped(given):
    x = qkv()
    value = torch.ones(1, 1, 150, 150, dtype=torch.bool) if given == "allowed" else lambda q, k: torch.zeros(1)
    with pytest.raises(ConfigError, match=f"favor attention cannot honour {given}.*attention=softmax"):
        FavorAttention(8)(*x, **{given: value})


def test_predicted_variance_is_that_of_simulation():
    q, k = 0.4 * draw(4, 8, seed=1), 0.4 * draw(4, 8, seed=2)
    for feature in ("positive", "hyperbolic", "optimal"):
        kind = FavorAttention(4, feature=feature, coupling="iid")
        omega = torch.randn(20_000, 4, 8, generator=stream(0, "many"), dtype=torch.float64)
        scale = 8**-0.25
        products = torch.stack([(MAPS[feature](q * scale, o) * MAPS[feature](k * scale, o)).sum(-1) for o in omega])
        relative = products.var(0) / torch.exp((q * k).sum(-1) * scale**2).square()
        torch.testing.assert_close(kind.variance(q, k).exp(), relative, rtol=0.25, atol=0)


def by_chunks_with_a_leak(f, g, v, log_weight, **seen):
    """The twin: keys stabilised by the largest of all, those to come included."""
    top = log_weight.amax(-1, keepdim=True)
    return linear_causal(
        f, g * (log_weight - top).exp()[..., None].to(g.dtype), v, torch.zeros_like(log_weight), **seen
    )


def test_the_check_of_causality_catches_a_stabiliser_that_looks_ahead(monkeypatch):
    monkeypatch.setattr(retrieval, "linear_causal", by_chunks_with_a_leak)
    broken = [v for v in check_attention(lambda: FavorAttention(16), laws="C") if not v.passed]
    assert broken
    assert broken[0].worst > 1e-3


class WithoutSigns(FavorAttention):
    """The twin: padding is given features, since φ(0) is not 0."""

    def forward(self, q, k, v, *, valid=None, **seen):
        if valid is not None:
            gone = ~valid[:, None, :, None]
            k, v = k.masked_fill(gone, 0), v.masked_fill(gone, 0)
        return super().forward(q, k, v, **seen)

    def bind(self, heads, key, stream=None):
        bound = super().bind(heads, key, stream)
        bound.__class__ = WithoutSigns
        return bound


def test_the_check_of_padding_catches_padding_that_counts_in_the_normaliser():
    broken = [v for v in check_attention(lambda: WithoutSigns(16), laws="P") if not v.passed]
    assert any("padded items" in v.note for v in broken)


def steps(layer, q, k, v):
    state, answers = layer.start(q, 0, batch=q.shape[0], heads=q.shape[1], key=q.shape[3], value=v.shape[3]), []
    for t in range(q.shape[2]):
        out, state = layer.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
        answers.append(out)
    return torch.cat(answers, 2), state


@torch.no_grad()
@pytest.mark.parametrize("slack", [0.0, 10.0])
@pytest.mark.parametrize("growth", [0.0, 0.02, 0.5])
def test_single_steps_are_the_whole_however_fast_weights_rise(slack, growth, monkeypatch):
    monkeypatch.setattr("mapsto.functional.causal.SLACK", slack)
    layer = FavorAttention(16, feature="positive").bind(2, 8).double()
    q, k, v = qkv(places=60)
    k = k / (1 + growth * torch.arange(60, dtype=k.dtype).flip(0)[:, None])  # short keys weigh more
    k[:, :, ::7] *= 6
    found, state = steps(layer, q, k, v)
    torch.testing.assert_close(found, layer(q, k, v, causal=True), atol=1e-9, rtol=1e-9)
    assert (state.weights >= 0).all()


@torch.no_grad()
def test_features_drawn_anew_are_seen_by_the_next_steps():
    layer = FavorAttention(16).bind(2, 8).double()
    x = qkv(places=20)
    before, _ = steps(layer, *x)
    other = copy.deepcopy(layer)
    for one in (layer, other):
        one.reset(stream(5, "test"))
        found, _ = steps(one, *x)
        assert not torch.allclose(found, before)
        torch.testing.assert_close(found, one(*x, causal=True), atol=1e-9, rtol=1e-9)
    double = layer.float()
    torch.testing.assert_close(steps(double, *(t.float() for t in x))[0], found.float(), atol=1e-4, rtol=1e-4)


def test_steps_in_inference_mode_do_not_keep_a_layer_from_learning():
    layer = FavorAttention(16).bind(2, 8).double()
    x = qkv(places=5)
    with torch.inference_mode():
        steps(layer, *x)
    x[0].requires_grad_()
    layer(*x, causal=True).sum().backward()
    assert x[0].grad is not None
