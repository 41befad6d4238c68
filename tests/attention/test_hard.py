import math

import pytest
import torch

from mapsto import kinds
from mapsto.attention.hard import HardAttention
from mapsto.errors import ConfigError
from mapsto.functional import choice
from mapsto.functional.attention import attend
from mapsto.nn.multihead import MultiheadAttention
from mapsto.noise import set_clock
from mapsto.stream import Clock, stream
from mapsto.testing import check_attention, require


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


def qkv(batch=3, places=12, dtype=torch.float64, width=4):
    return tuple(draw(batch, 2, places, width, seed=s, dtype=dtype) for s in (1, 2, 3))


def agree(found, wanted, tol=1e-10):
    torch.testing.assert_close(found, wanted, atol=tol, rtol=0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(choice, "SCORES", 100)
    monkeypatch.setattr(choice, "QUERIES", 5)


@pytest.mark.parametrize("settings", [{}, {"beta": 3.0}, {"estimator": "gumbel", "temperature": 0.5}])
def test_the_laws_hold(settings):
    require(check_attention(lambda: HardAttention(**settings), laws="PBSCTMKDRH"))


@pytest.mark.parametrize("estimator", ["straight-through", pytest.param("gumbel", marks=pytest.mark.slow)])
def test_one_graph_serves_all_lengths(estimator):
    require(check_attention(lambda: HardAttention(estimator), laws="G"))


@pytest.mark.usefixtures("small")
def test_each_query_takes_the_value_of_its_best_key():
    q, k, v = qkv(batch=2, places=17)
    valid = torch.rand(2, 17, generator=stream(1, "test")) > 0.4
    out = HardAttention()(q, k, v, valid=valid, causal=True)
    for b in range(2):
        for h in range(2):
            for l in range(17):
                keys = [m for m in range(l + 1) if valid[b, m]]
                wanted = torch.zeros(4).double()
                if keys:
                    wanted = v[b, h, max(keys, key=lambda m: float(q[b, h, l] @ k[b, h, m]))]
                assert torch.equal(out[b, h, l], wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_equal_keys_give_the_first(dtype):
    q, k, v = qkv(dtype=dtype)
    k[:, :, 5:] = k[:, :, 5:6]
    k[:, :, :5] = -10 * q.mean(2, keepdim=True)
    same = HardAttention()(q, k.mul(0), v)
    assert torch.equal(same, v[:, :, :1].expand_as(v))


@pytest.mark.parametrize("beta", [None, 2.5])
@pytest.mark.usefixtures("small")
def test_straight_through_gradients_are_those_of_softargmax_and_of_the_choice(beta):
    x = [t.requires_grad_() for t in qkv(places=17)]
    upstream = draw(3, 2, 17, 4, seed=9)
    q, k, v = x
    gq, gk, gv = torch.autograd.grad(HardAttention(beta=beta)(q, k, v, causal=True), x, upstream)
    soft = attend(q, k, v.detach(), causal=True, beta=beta)
    for found, wanted in zip((gq, gk), torch.autograd.grad(soft, (q, k), upstream), strict=True):
        agree(found, wanted)
    best = (q @ k.mT).masked_fill(torch.ones(17, 17).triu(1).bool(), -torch.inf).argmax(-1)
    agree(gv, torch.nn.functional.one_hot(best, 17).double().mT @ upstream)


@pytest.mark.usefixtures("small")
def test_tiles_change_neither_the_choice_nor_a_gradient(monkeypatch):
    x = [t.requires_grad_() for t in qkv(places=17)]
    slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def bias(queries, keys):
        distance = torch.arange(queries.start, queries.stop)[:, None] - torch.arange(keys.start, keys.stop)
        return slope * torch.sin(distance.double())[None, None]

    decay = -draw(3, 2, 17, seed=6).abs().requires_grad_()
    given = [*x, slope, decay]

    def both():
        out = HardAttention()(*x, bias=bias, decay=decay, causal=True)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    small = both()
    monkeypatch.undo()
    for found, wanted in zip(small, both(), strict=True):
        agree(found, wanted)


def test_gumbel_draws_each_key_as_often_as_softargmax_says():
    count, keys = 4000, 5
    q = draw(1, 1, 1, 3, seed=1).expand(1, 1, count, 3)
    k, v = draw(1, 1, keys, 3, seed=2), torch.eye(keys).double()[None, None]
    layer = HardAttention("gumbel", beta=0.7).train()
    layer.noise.clock = Clock(seed=4, step=2)
    found = layer(q, k, v).mean(2)[0, 0]
    wanted = torch.softmax(0.7 * (q[0, 0, 0] @ k[0, 0].mT), -1)
    error = (wanted * (1 - wanted) / count).sqrt()
    assert ((found - wanted).abs() < 4 * error).all()


@pytest.mark.usefixtures("small")
def test_gumbel_gradients_are_those_of_softmax_with_the_very_noise():
    x = [t.requires_grad_() for t in qkv(batch=2, places=9)]
    q, k, v = x
    layer = HardAttention("gumbel", temperature=2.0, final=0.5, steps=10).train()
    layer.noise.clock = Clock(seed=4, step=5)
    upstream = draw(2, 2, 9, 4, seed=9)
    out = layer(q, k, v)
    found = torch.autograd.grad(out, (q, k), upstream)
    again = HardAttention("gumbel").train()
    again.noise.clock = Clock(seed=4, step=5)
    tiles, noise = again.noise.tiles(q.device), torch.zeros(2, 2, 9, 9).double()
    for number, (b, l) in enumerate((b, l) for b in range(2) for l in range(0, 9, 5)):
        noise[b : b + 1, :, l : l + 5] = tiles(number, noise[b : b + 1, :, l : l + 5].shape)
    logits = q @ k.mT / 2 + noise
    picked = logits.argmax(-1, keepdim=True).expand(-1, -1, -1, 4)
    assert torch.equal(out, v.gather(2, picked))
    soft = torch.softmax(logits / 1.0, -1) @ v.detach()  # halfway from 2 to 1/2, by factors
    for a, b in zip(found, torch.autograd.grad(soft, (q, k), upstream), strict=True):
        agree(a, b)


def test_the_temperature_falls_by_one_factor_a_step_and_then_stays():
    kind = HardAttention("gumbel", temperature=4.0, final=0.25, steps=4)
    assert [kind.cooled(step) for step in range(6)] == pytest.approx([4.0, 2.0, 1.0, 0.5, 0.25, 0.25])
    assert HardAttention("gumbel", final=0.5, steps=0).cooled(0) == 0.5
    assert HardAttention().cooled(100) == 1.0


def test_noise_is_of_the_clock_and_of_the_layer():
    layers = torch.nn.ModuleList(MultiheadAttention(8, 2, attention=HardAttention("gumbel")) for _ in range(2)).train()
    x = qkv(dtype=torch.float32)
    clock = Clock(seed=1)

    def answers(step):
        set_clock(layers, clock)
        clock.step = step
        return [layer.attention(*x) for layer in layers]

    first, second = answers(3)
    assert not torch.equal(first, second)
    assert torch.equal(answers(3)[0], first)
    assert not torch.equal(answers(4)[0], first)
    layers.eval()
    assert torch.equal(*answers(3))


def test_exact_attention_tends_to_it_as_beta_grows():
    q, k, v = qkv()
    errors = [float((attend(q, k, v, beta=beta) - HardAttention()(q, k, v)).norm()) for beta in (1.0, 10.0, 100.0, 1e6)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-10


def test_a_query_that_is_not_finite_answers_nan_and_spoils_no_gradient():
    q, k, v = qkv()
    q[1, 0, 3] = torch.nan
    with torch.no_grad():
        assert HardAttention()(q, k, v)[1, 0, 3].isnan().all()
    x = [t.requires_grad_() for t in (q, k, v)]
    out = HardAttention()(*x)
    assert out[1, 0, 3].isnan().all()
    used = out[:, :, [0, 1, 2, *range(4, 12)]]
    assert used.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(used.sum(), x))


def test_it_is_kind_hard():
    made = kinds.make("attention", "hard:estimator=gumbel,final=0.5")
    assert isinstance(made, HardAttention)
    assert made.settings() == {"estimator": "gumbel", "beta": None, "temperature": 1.0, "final": 0.5, "steps": 10_000}
    assert not made.state_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "gumble"}, r'"gumble" is not one of straight-through, gumbel\..*Did you mean "gumbel"'),
        ({"beta": math.inf}, r"attention\.beta=inf"),
        ({"estimator": "gumbel", "final": 0.0}, r"attention\.final=0\.0: expected a finite number above 0"),
        ({"estimator": "gumbel", "steps": -1}, r"attention\.steps=-1"),
        ({"temperature": 0.5}, r"do nothing to straight-through\. Use estimator=gumbel"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        HardAttention(**settings)
