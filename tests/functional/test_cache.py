"""The cache of keys and values: what nobody wrote is never seen."""

import pytest
import torch

from mapsto.attention.softmax import SoftmaxAttention
from mapsto.functional.attention import attend
from mapsto.stream import stream


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64).to(dtype)


@pytest.fixture
def poisoned():
    """Fresh memory is full of NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@torch.no_grad()
def test_a_selected_cache_shows_nothing_of_the_room_it_left_empty(poisoned):
    layer, rows = SoftmaxAttention(), torch.tensor([2, 0, 0])
    q, k, v = (draw(3, 2, 9, 4, seed=s) for s in range(3))
    state = layer.start(q, 12, batch=3, heads=2, key=4, value=4)
    _, state = layer.step(q[:, :, :3], k[:, :, :3], v[:, :, :3], state)
    state, (q, k, v) = state.select(rows), (x[rows] for x in (q, k, v))
    lengths = torch.tensor([3, 1, 2])
    parts = [x[:, :, 3:6] for x in (q, k, v)]
    found, state = layer.step(*parts, state, valid=torch.arange(3) < lengths[:, None])
    for row, n in enumerate(lengths.tolist()):
        whole = layer(*(x[row : row + 1, :, : 3 + n] for x in (q, k, v)), causal=True)
        torch.testing.assert_close(found[row, :, :n], whole[0, :, 3:])
    state = state.select(torch.tensor([1, 2]))
    found, state = layer.step(*(x[1:, :, 6:7] for x in (q, k, v)), state)
    assert found.isfinite().all()
    assert layer.read(q[1:], state).isfinite().all()
    known = torch.cat([k[1:2, :, :4], k[1:2, :, 6:7]], 2), torch.cat([v[1:2, :, :4], v[1:2, :, 6:7]], 2)
    torch.testing.assert_close(found[:1], attend(q[1:2, :, 6:7], *known))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [4, 7])
@pytest.mark.parametrize("beta", [None, 0.0, 3.0])
def test_one_query_is_answered_by_the_formula(dtype, value, beta):
    q, k, v = draw(3, 2, 1, 4, dtype=dtype), draw(3, 2, 20, 4, seed=1, dtype=dtype), draw(3, 2, 20, value, dtype=dtype)
    scale = 4**-0.5 if beta is None else beta
    wanted = torch.softmax(scale * q.double() @ k.double().mT, -1) @ v.double()
    torch.testing.assert_close(attend(q, k, v, beta=beta), wanted.to(dtype), atol=1e-6, rtol=1e-5)
