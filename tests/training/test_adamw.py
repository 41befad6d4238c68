import pytest
import torch

from mapsto.stream import stream
from mapsto.training.adamw import AdamW


def trained(own: bool, split: int, dtype: torch.dtype = torch.float32, kernel: bool = True) -> torch.Tensor:
    draw = stream(0, "test")
    weights = torch.randn(50, generator=draw, dtype=dtype)
    gradients = torch.randn(30, 50, generator=draw, dtype=dtype)
    rates = [0.01 * (1 + t % 3) for t in range(30)]
    if own:
        optimiser = AdamW(weights, split, decay=0.1, betas=(0.8, 0.95))
        if not kernel:
            optimiser._kernel = None
        for g, rate in zip(gradients, rates, strict=True):
            optimiser.step(g.clone(), rate)
        assert float(optimiser.count) == 30
        return weights
    parts = [part.clone() for part in weights.split([split, 50 - split])]
    groups = [{"params": [part], "weight_decay": decay} for part, decay in zip(parts, (0.1, 0.0), strict=True)]
    reference = torch.optim.AdamW(groups, lr=1.0, betas=(0.8, 0.95), fused=kernel, foreach=None if kernel else False)
    for g, rate in zip(gradients, rates, strict=True):
        for group, part in zip(reference.param_groups, g.split([split, 50 - split]), strict=True):
            group["lr"] = rate
            group["params"][0].grad = part.clone()
        reference.step()
    return torch.cat(parts)


@pytest.mark.parametrize("split", [0, 20, 50])
def test_a_step_gives_the_bits_of_the_fused_optimiser_of_torch(split):
    torch.testing.assert_close(trained(True, split), trained(False, split), rtol=0, atol=0)


@pytest.mark.parametrize("split", [0, 20, 50])
def test_without_the_kernel_the_formula_gives_the_same(split):
    formula = trained(True, split, torch.float64, kernel=False)
    torch.testing.assert_close(formula, trained(False, split, torch.float64, kernel=False), rtol=1e-12, atol=1e-12)
