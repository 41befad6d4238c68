import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mapsto.errors import ConfigError
from mapsto.functional.scan import MOST, scan
from mapsto.stream import stream

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 256, 257, 300, 4097)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


def plain(x, log_forget=None, start=None, reverse=False):
    """A loop in float64."""
    x = x.double()
    gate = torch.ones_like(x) if log_forget is None else torch.as_tensor(log_forget).double().exp().expand_as(x)
    h = torch.zeros_like(x[..., 0, :]) if start is None else start.double()
    out = [None] * x.shape[-2]
    for t in range(x.shape[-2])[:: -1 if reverse else 1]:
        h = gate[..., t, :] * h + x[..., t, :]
        out[t] = h
    return torch.stack(out, -2)


def forgettings(n, seed=5):
    """One of every shape, for x of (2, 3, n, 4)."""
    return {
        "none": None,
        "a number": -0.3,
        "one a head": -draw(3, 1, 1, seed=seed).abs(),
        "one a channel": -draw(4, seed=seed).abs(),
        "one an item": -draw(2, 3, n, 1, seed=seed).abs(),
        "alike in all rows": -draw(3, n, 4, seed=seed).abs(),
        "one a number": -draw(2, 3, n, 4, seed=seed).abs(),
        "nearly nothing is kept": -100 * draw(2, 3, n, 4, seed=seed).abs(),
        "all is kept": torch.zeros(2, 3, n, 4, dtype=torch.float64),
    }


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", forgettings(1))
@pytest.mark.parametrize("n", LENGTHS)
def test_a_scan_is_the_loop(n, name, reverse):
    x, log_forget = draw(2, 3, n, 4), forgettings(n)[name]
    wanted = plain(x, log_forget, reverse=reverse)
    kept = x.clone()
    torch.testing.assert_close(scan(x, log_forget, reverse=reverse), wanted, atol=1e-11, rtol=1e-12)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_goes_on_from_where_it_stood(reverse):
    x, log_forget, start = draw(2, 40, 4), -draw(2, 40, 4, seed=1).abs(), draw(2, 4, seed=2)
    wanted = plain(x, log_forget, start, reverse)
    torch.testing.assert_close(scan(x, log_forget, start=start, reverse=reverse), wanted, atol=1e-12, rtol=0)
    first, second = slice(0, 17), slice(17, 40)
    if reverse:
        first, second = second, first
    before = scan(x[:, first], log_forget[:, first], start=start, reverse=reverse)
    end = before[:, 0] if reverse else before[:, -1]
    after = scan(x[:, second], log_forget[:, second], start=end, reverse=reverse)
    found = torch.cat([after, before] if reverse else [before, after], 1)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_without_forgetting_it_is_a_sum():
    x = draw(2, 1000, 3)
    torch.testing.assert_close(scan(x), x.cumsum(1), atol=1e-11, rtol=0)


@pytest.mark.parametrize("n", [17, 300])
def test_what_comes_later_changes_nothing_exactly(n):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x, gate = draw(2, n, 4, dtype=dtype), -draw(2, n, 4, seed=1, dtype=dtype).abs()
        whole = scan(x, gate)
        for t in (1, 5, 16, n - 1):
            for size in (1.0, 1000.0):
                later, other = x.clone(), gate.clone()
                later[:, t:] = size * draw(2, n, 4, seed=2, dtype=dtype)[:, t:]
                other[:, t:] = -size * draw(2, n, 4, seed=3, dtype=dtype).abs()[:, t:]
                assert torch.equal(scan(later, other)[:, :t], whole[:, :t])
                longer = [torch.cat([y, y], 1) for y in (x, gate)]
                assert torch.equal(scan(*longer)[:, :n], whole)
        given = [y.clone().requires_grad_() for y in (x, gate)]
        upstream = torch.zeros_like(x)
        upstream[:, :9] = 1
        for g in torch.autograd.grad(scan(*given), given, upstream):
            assert (g[:, 9:] == 0).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 16, 20])
def test_gradients_are_right_twice(n, reverse):
    x, start = draw(1, 2, n, 2).requires_grad_(), draw(1, 2, 2, seed=4).requires_grad_()
    for shape in ((), (2, 1, 1), (2,), (1, 2, n, 1), (1, 2, n, 2)):
        log_forget = (-draw(*shape, seed=1).abs()).requires_grad_()

        def run(x, log_forget, start):
            return scan(x, log_forget, start=start, reverse=reverse)

        assert torch.autograd.gradcheck(run, (x, log_forget, start), fast_mode=n > 16)
        assert torch.autograd.gradgradcheck(run, (x, log_forget, start), fast_mode=True)


def test_gradients_of_long_rows_are_those_of_the_loop():
    x, gate, upstream = draw(1, 700, 3), -0.1 * draw(1, 700, 3, seed=1).abs(), draw(1, 700, 3, seed=2)
    found, wanted = (
        torch.autograd.grad(way(*(given := [y.clone().requires_grad_() for y in (x, gate)])), given, upstream)
        for way in (scan, plain)
    )
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("forget", [0.0, -1e-6, -1e-3, -1.0, -50.0, -1e4])
def test_131072_items_of_any_forgetting_stay_near_float64(forget):
    n = 131_072
    x = draw(1, n, 2, dtype=torch.float32).abs()
    gate = forget * torch.rand(1, n, 2, generator=stream(1, "test"), dtype=torch.float32)
    x.requires_grad_(), gate.requires_grad_()
    found = scan(x, gate)
    wanted = scan(x.detach().double(), gate.detach().double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad(found.mean(), (x, gate))
    assert all(g.isfinite().all() for g in gradients)
    step = slice(n - 2000, n)
    at = wanted[:, step.start - 1]
    torch.testing.assert_close(
        wanted[:, step], plain(x.detach()[:, step], gate.detach()[:, step], at), rtol=1e-9, atol=0
    )


def test_sums_are_in_float32_at_least():
    x = torch.ones(1, 5000, 1, dtype=torch.bfloat16)
    out = scan(x)
    assert out.dtype == torch.bfloat16
    assert float(out[0, -1, 0]) == 4992  # 5000 in bfloat16; a sum in bfloat16 stands still at 256
    with torch.autocast("cpu", torch.bfloat16):
        assert float(scan(x.float())[0, -1, 0]) == 5000


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)])
def test_nothing_gives_nothing(shape):
    assert scan(torch.zeros(shape), -1.0).shape == shape


def test_a_forgetting_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match=r"log_forget is \(1, 4, 1\), x \(2, 5, 3\)"):
        scan(torch.zeros(2, 5, 3), torch.zeros(4, 1))


class Steps(TorchDispatchMode):
    """How many operations are done, and the most numbers any result holds."""

    def __init__(self):
        super().__init__()
        self.count = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += 1
        sizes = [t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(out) if torch.is_tensor(t)]
        self.most = max([self.most, *sizes])
        return out


def test_steps_grow_with_the_logarithm_and_room_with_the_length():
    counts = {}
    for n in (4096, 65_536):
        x = torch.zeros(1, n, 4, requires_grad=True)
        with Steps() as steps:
            scan(x, torch.zeros(1, n, 4, requires_grad=True)).sum().backward()
        counts[n] = steps.count
        assert steps.most <= 4 * (n + 16)
    assert counts[65_536] < 1.5 * counts[4096] < 1000


@pytest.mark.sample
@pytest.mark.slow
def test_a_scan_compiles_and_exports_for_any_length():
    class Whole(torch.nn.Module):
        def forward(self, x, log_forget):
            return scan(x, log_forget), scan(x, -0.1, reverse=True)

    torch._dynamo.reset()
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    compiled = torch.compile(Whole(), backend=backend, fullgraph=True, dynamic=True)
    exported = torch.export.export(
        Whole(),
        (draw(2, 7, 3), -draw(2, 7, 3).abs()),
        dynamic_shapes=[{0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}] * 2,
    ).module()
    for n in (7, 1, 16, 64, 300, 5000):
        x, gate = draw(2, n, 3), -draw(2, n, 3, seed=1).abs()
        wanted = Whole()(x, gate)
        torch.testing.assert_close(compiled(x, gate), wanted, atol=1e-10, rtol=0)
        if n > 1:
            torch.testing.assert_close(exported(x, gate), wanted, atol=1e-10, rtol=0)
    for n in (7, 600):
        found, wanted = (
            torch.autograd.grad(
                sum(way(*(given := [draw(2, n, 3).requires_grad_(), (-draw(2, n, 3, seed=1).abs()).requires_grad_()])))
                .square()
                .sum(),
                given,
            )
            for way in (compiled, Whole())
        )
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)
    assert len(graphs) <= 4
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a compiled scan takes at most"):
        torch.compile(scan, backend="eager", fullgraph=True)(torch.zeros(1, MOST + 1, 1))
    torch._dynamo.reset()
