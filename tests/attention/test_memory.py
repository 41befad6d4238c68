import math

import pytest
import torch

from mapsto.attention import memory as memory_module
from mapsto.attention.memory import MemoryAttention
from mapsto.errors import ConfigError
from mapsto.nn.multihead import MultiheadAttention
from mapsto.stream import stream
from mapsto.testing import check_attention, require


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


def one_by_one(q, k, v, gammas):
    """S_t = γ_t S_{t−1} + φ(k_t) v_tᵀ and z_t likewise, read at each place, as the formula says."""
    lift = lambda x: torch.where(x > 0, x + 1, x.exp())  # noqa: E731
    batch, heads, places, width = k.shape
    store, total = torch.zeros(batch, heads, width, v.shape[-1]).double(), torch.zeros(batch, heads, width).double()
    answers = []
    for t in range(places):
        key = lift(k[:, :, t])
        store = gammas[:, :, t, None, None] * store + key[..., None] * v[:, :, t, None]
        total = gammas[:, :, t, None] * total + key
        query = lift(q[:, :, t])
        answers.append(torch.einsum("BHK,BHKV->BHV", query, store) / (query * total).sum(-1, keepdim=True))
    return torch.stack(answers, 2)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.01])
def test_it_writes_forgets_and_reads_as_the_recurrence(gamma):
    q, k, v = (draw(2, 2, 150, 4, seed=s) for s in (1, 2, 3))
    wanted = one_by_one(q, k, v, torch.full((2, 2, 150), gamma, dtype=torch.float64))
    torch.testing.assert_close(MemoryAttention(gamma)(q, k, v, causal=True), wanted, atol=1e-11, rtol=1e-9)


def test_a_gate_tells_from_each_key_how_much_is_kept():
    q, k, v = (draw(2, 2, 90, 4, seed=s) for s in (1, 2, 3))
    layer = MemoryAttention(gated=True).bind(2, 4).double()
    with torch.no_grad():
        layer.gate.copy_(draw(2, 4, seed=7))
        layer.open.copy_(draw(2, seed=8))
    gammas = torch.sigmoid(torch.einsum("BHMK,HK->BHM", k, layer.gate) + layer.open[:, None])
    found = layer(q, k, v, causal=True)
    torch.testing.assert_close(found, one_by_one(q, k, v, gammas), atol=1e-11, rtol=1e-9)
    gate, begin = torch.autograd.grad(found.square().sum(), [layer.gate, layer.open])
    wanted = torch.autograd.grad(one_by_one(q, k, v, gammas).square().sum(), [layer.gate, layer.open])
    torch.testing.assert_close((gate, begin), wanted, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("options", [{"gamma": 0.8}, {"gated": True}])
def test_every_law_holds(options):
    verdicts = check_attention(lambda: MemoryAttention(**options), chunk=64, laws="PBSCTMKDR")
    require(verdicts)
    assert any("the order of keys counts" in v.note for v in verdicts)


@pytest.mark.slow
def test_a_gated_memory_compiles_and_exports():
    require(check_attention(lambda: MemoryAttention(gated=True), laws="G"))


def test_pairs_that_were_written_are_found_again_by_their_keys():
    """With as many features as pairs and keys far apart, the store gives each value back."""
    keys = 20 * torch.eye(16)[None, None] - 10
    values = draw(1, 1, 16, 8, dtype=torch.float32)
    memory = MemoryAttention()
    state = memory.write(keys, values, memory.start(keys, 0, batch=1, heads=1, key=16, value=8))
    torch.testing.assert_close(memory.read(keys, state), values, atol=1e-3, rtol=0)


def test_what_was_written_long_ago_is_forgotten():
    k, v = draw(1, 1, 200, 4, dtype=torch.float32), torch.zeros(1, 1, 200, 1)
    v[:, :, :100] = 1
    memory = MemoryAttention(0.9)
    state = memory.write(k, v, memory.start(k, 0, batch=1, heads=1, key=4, value=1))
    assert float(memory.read(k[:, :, :1], state).squeeze()) < 1e-3
    assert float(MemoryAttention()(k[:, :, :1], k, v).squeeze()) > 0.3


def test_forgetting_over_a_million_places_stays_finite():
    memory = MemoryAttention(0.5)
    k, v = draw(1, 1, 5000, 4, dtype=torch.float32), draw(1, 1, 5000, 4, seed=1, dtype=torch.float32)
    state = memory.start(k, 0, batch=1, heads=1, key=4, value=4)
    for _ in range(20):
        out, state = memory.step(k, k, v, state)
    assert out.isfinite().all()
    assert state.top.abs().max() < 1e3
    assert 20 * 5000 * math.log(2) > 6e4  # what a sum of logarithms would have grown to


def test_a_document_forgets_by_its_own_keys_only():
    q, k, v = (draw(1, 2, 9, 4, seed=s) for s in (1, 2, 3))
    segment = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 0]])
    found = MemoryAttention(0.5)(q, k, v, causal=True, segment=segment)
    for document in (0, 1):
        own = (segment[0] == document).nonzero()[:, 0]
        alone = MemoryAttention(0.5)(*(t[:, :, own] for t in (q, k, v)), causal=True)
        torch.testing.assert_close(found[:, :, own], alone, atol=1e-12, rtol=1e-10)


def test_a_long_prefill_that_forgets_is_as_exact_as_the_whole():
    x = [draw(1, 1, 8192, 4, seed=s, dtype=torch.float32) for s in (1, 2, 3)]
    memory = MemoryAttention(0.5)
    out, _ = memory.step(*x, memory.start(x[0], 0, batch=1, heads=1, key=4, value=4))
    torch.testing.assert_close(out, memory(*x, causal=True), atol=1e-5, rtol=0)


def test_features_keep_their_digits_far_below_zero():
    x = torch.tensor([-30.0, -17.0, -1.0, 0.0, 2.0], requires_grad=True)
    lifted = memory_module.lift(x)
    wanted = torch.tensor([math.exp(-30), math.exp(-17), math.exp(-1), 1.0, 3.0])
    torch.testing.assert_close(lifted, wanted, rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(lifted.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([math.exp(-30), math.exp(-17), math.exp(-1), 1.0, 1.0]))


def test_autocast_changes_no_digit_of_what_is_read():
    k, v = draw(1, 1, 50, 8, dtype=torch.float32), draw(1, 1, 50, 8, seed=1, dtype=torch.float32)
    memory = MemoryAttention()
    state = memory.write(k, v, memory.start(k, 0, batch=1, heads=1, key=8, value=8))
    with torch.autocast("cpu", torch.bfloat16):
        inside = memory.read(k, state)
    assert torch.equal(inside, memory.read(k, state))


@pytest.mark.parametrize("gamma", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(gamma):
    with pytest.raises(ConfigError, match=r"attention\.gamma"):
        MemoryAttention(gamma)


def test_a_gate_and_a_share_are_not_given_together():
    with pytest.raises(ConfigError, match="learns what to keep"):
        MemoryAttention(0.5, gated=True)


def test_a_layer_of_it_learns_its_gate():
    layer = MultiheadAttention(8, 2, attention=MemoryAttention(gated=True))
    assert {n for n, _ in layer.named_parameters()} >= {"attention.gate", "attention.open"}


class ForgetsAtPadding(MemoryAttention):
    """The twin: what is not valid makes the memory fade, too."""

    def _fade(self, k, valid):
        return super()._fade(k, None)

    def bind(self, heads, key, stream=None):
        return ForgetsAtPadding(**self.settings())


def test_the_law_checks_catch_padding_that_forgets():
    broken = [v for v in check_attention(lambda: ForgetsAtPadding(0.5), laws="T") if not v.passed]
    assert [v.law for v in broken] == ["T"] * len(broken)
    assert broken
