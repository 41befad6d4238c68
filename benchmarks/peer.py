"""Other libraries' attention with the settings of ours, where they are installed; why not, where they are not.

Each maker gives a function of q, k, v (B, H, L, K), or raises ``Missing`` with the reason. None of these packages is
imported by the library.
"""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PEERS", "Call", "Missing"]

Call = Callable[[Tensor, Tensor, Tensor], Tensor]


class Missing(Exception):
    """Not installed, or not made for this; says which."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Peers warn and print as they are imported; our own output is read by a program."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def torch_own(causal: bool, width: int, features: int, window: int) -> Call:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def performer(causal: bool, width: int, features: int, window: int) -> Call:
    """Positive orthogonal features; causally, without its compiled part, all prefix sums of a piece at once."""
    try:
        with quiet():
            from performer_pytorch import FastAttention

            return FastAttention(width, nb_features=features, causal=causal).requires_grad_(False)
    except ImportError as e:
        raise Missing(f"performer-pytorch: {e}") from None


def fast_transformers(causal: bool, width: int, features: int, window: int) -> Call:
    """Positive orthogonal features and a causal product in C++."""
    return _fast(causal, width, features)


def fast_elu(causal: bool, width: int, features: int, window: int) -> Call:
    """The same with elu + 1."""
    return _fast(causal, width, None)


def _fast(causal: bool, width: int, features: int | None) -> Call:
    try:
        with quiet():
            from fast_transformers.attention import CausalLinearAttention, LinearAttention
            from fast_transformers.feature_maps import Favor
            from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask
    except ImportError as e:
        raise Missing(f"pytorch-fast-transformers: {e}") from None
    made = (CausalLinearAttention if causal else LinearAttention)(
        width, feature_map=Favor.factory(n_dims=features) if features else None
    )

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        mask = (TriangularCausalMask if causal else FullMask)(length, device=q.device)
        lengths = LengthMask(torch.full((len(q),), length, device=q.device))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out: Tensor = made(q, k, v, mask, lengths, lengths)
        return out.transpose(1, 2)

    return call


def local(causal: bool, width: int, features: int, window: int) -> Call:
    """The same band as ours, and no positions."""
    return _local(causal, window, exact_windowsize=True, use_rotary_pos_emb=False)


def local_installed(causal: bool, width: int, features: int, window: int) -> Call:
    """Its defaults: rotary positions, and windows of up to twice the size."""
    return _local(causal, window, dim=width)


def _local(causal: bool, window: int, **settings: object) -> Call:
    try:
        with quiet():
            from local_attention import LocalAttention

            return LocalAttention(window, causal=causal, autopad=True, **settings).requires_grad_(False)
    except ImportError as e:
        raise Missing(f"local-attention: {e}") from None


PEERS: dict[str, Callable[[bool, int, int, int], Call]] = {
    "torch": torch_own,
    "performer-pytorch": performer,
    "fast-transformers": fast_transformers,
    "fast-transformers elu": fast_elu,
    "local-attention": local,
    "local-attention as installed": local_installed,
}
"""Each is given: causal, key width, features, window."""
