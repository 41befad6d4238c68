"""What the benchmarks of attention time: our kinds, their peers, and the limits of a machine, on the same inputs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mapsto import kinds
from mapsto.stream import stream
from peer import PEERS, Call, Missing

__all__ = ["KINDS", "Setting", "caller", "draw", "inputs", "limits", "make"]

HEADS, WIDTH, FEATURES, WINDOW = 8, 64, 256, 256

KINDS = {
    "softmax": "softmax",
    "hard": "hard",
    "window": f"window:{WINDOW}",
    "favor": f"favor:{FEATURES}",
    "memory": "memory",
}
"""Our kinds as they are typed; those that are there are timed."""

QUADRATIC = ("softmax", "hard", "torch")


@dataclass(frozen=True)
class Setting:
    """One row of the table: B = 1, H = 8, K = V = 64, 256 features, a window of 256."""

    length: int
    kind: str = "float32"
    causal: bool = False
    learn: bool = False
    device: str = "cpu"

    def __str__(self) -> str:
        way = "both" if self.learn else "forward"
        return f"{self.length} {'causal ' if self.causal else ''}{self.kind} {way}"

    def takes(self, name: str, exact: int) -> bool:
        """Whether a candidate is to be tried: not where it would take minutes, or all of the memory."""
        if name in QUADRATIC:
            return self.length <= exact
        if name == "performer-pytorch" and self.causal:  # L × R × V × H numbers, all kept for the backward
            return self.length <= (2048 if self.learn else 8192)
        return True


def draw(
    seed: int, batch: int, heads: int, length: int, width: int, kind: torch.dtype, learn: bool, device: str = "cpu"
) -> Tensor:
    # As a projection gives them: a place's heads beside each other.
    x = torch.randn(batch, length, heads, width, generator=stream(seed, "benchmark"))
    return x.to(device, kind).transpose(1, 2).requires_grad_(learn)


def inputs(setting: Setting) -> list[Tensor]:
    kind = getattr(torch, setting.kind)
    return [draw(s, 1, HEADS, setting.length, WIDTH, kind, setting.learn, setting.device) for s in range(3)]


def caller(f: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    upstream = torch.ones_like(inputs[0].transpose(1, 2)).transpose(1, 2)
    wait = torch.cuda.synchronize if inputs[0].is_cuda else None

    def forward() -> None:
        with torch.no_grad():
            f(*inputs)
        if wait is not None:
            wait()

    def both() -> None:
        for x in inputs:
            x.grad = None
        f(*inputs).backward(upstream)
        if wait is not None:
            wait()

    return both if inputs[0].requires_grad else forward


def make(name: str, setting: Setting, compiled: bool = False) -> Call:
    """A function of q, k and v.

    Raises:
        Missing: says why there is none.
    """
    if name == "values":  # the "X (OPT)" of the Performer paper: attention that costs nothing
        return lambda q, k, v: v.clone()
    if name in PEERS:
        call = PEERS[name](setting.causal, WIDTH, FEATURES, WINDOW)
        if isinstance(call, torch.nn.Module):
            call = call.to(setting.device, getattr(torch, setting.kind))
        return call
    kind = name.removesuffix(" compiled")
    if kind not in kinds.names("attention"):
        raise Missing(f"there is no {kind} attention")
    bound = kinds.make("attention", KINDS[kind]).bind(HEADS, WIDTH, stream(0, "features")).to(setting.device)
    attend = torch.compile(bound, dynamic=False) if kind != name else bound
    return lambda q, k, v: attend(q, k, v, causal=setting.causal)


def usable(names: Iterable[str], setting: Setting, exact: int) -> tuple[dict[str, Callable[[], None]], list[str]]:
    """Those that can be called on the inputs of a setting, and why others cannot."""
    given, found, reasons = inputs(setting), {}, []
    for name in names:
        if not setting.takes(name, exact):
            continue
        try:
            call = caller(make(name, setting), given)
            call()
        except Missing as e:
            reasons.append(str(e))
        except RuntimeError as e:  # a peer that does not know the type or the device
            reasons.append(f"{name}, {setting.kind}: {str(e).splitlines()[0]}")
        else:
            found[name] = call
    return found, reasons


def limits(setting: Setting) -> dict[str, Callable[[], None]]:
    """Products and exponentials alone, for a CPU: nothing is masked, normalised or summed."""
    if setting.device != "cpu":
        return {}
    found = {"limit of favor": linear_limit(setting.length, setting.learn, setting.causal)}
    if not setting.causal:
        found["limit of softmax"] = exact_limit(setting.length, setting.learn)
    return found


def exact_limit(length: int, learn: bool, heads: int = 8, width: int = 64, block: int = 128) -> Callable[[], None]:
    """Two products and one exponential forward; five and one more backward, as without L × M weights kept."""
    q, k, v = (torch.randn(heads, length, width, generator=stream(s, "benchmark")) for s in range(3))
    keys, values = k.mT.contiguous(), v.mT.contiguous()
    gk, gv = torch.zeros_like(k), torch.zeros_like(v)
    s, t = torch.empty(heads, block, length), torch.empty(heads, block, length)

    @torch.no_grad()
    def run() -> None:
        for i in range(0, length, block):
            size = min(block, length - i)
            torch.bmm(torch.bmm(q[:, i : i + block], keys, out=s[:, :size]).exp2_(), v)
        for i in range(0, length if learn else 0, block):
            rows = q[:, i : i + block]
            size = rows.shape[1]
            torch.bmm(rows, keys, out=s[:, :size]).exp2_()
            torch.bmm(rows, values, out=t[:, :size])
            torch.bmm(t[:, :size], k)
            gk.baddbmm_(t[:, :size].mT, rows)
            gv.baddbmm_(s[:, :size].mT, rows)

    return run


def linear_limit(
    length: int, learn: bool, causal: bool, heads: int = 8, width: int = 64, features: int = 256, chunk: int = 64
) -> Callable[[], None]:
    """Four products and two exponentials forward, two products for each of them backward; causal by chunks of 64.

    All in blocks that stay in the cache, into memory that is there already.
    """
    block = chunk if causal else 512
    q, k, v, g = (torch.randn(heads, length, width, generator=stream(s, "benchmark")) for s in range(4))
    omega = torch.randn(width, features, generator=stream(4, "benchmark")).expand(heads, -1, -1)
    back = omega.mT
    state = torch.zeros(heads, features, width)
    f, h = torch.empty(heads, block, features), torch.empty(heads, block, features)
    a = torch.empty(heads, block, block)
    kept = [torch.empty(heads, length, features) for _ in range(2)] if learn else []

    @torch.no_grad()
    def run() -> None:
        for i in range(0, length, block):
            rows = slice(i, i + block)
            size = min(block, length - i)
            mapped = kept[1][:, rows] if learn else h[:, :size]
            torch.bmm(k[:, rows], omega, out=mapped).exp2_()
            if not causal:
                state.baddbmm_(mapped.mT, v[:, rows], beta=0)
                continue
            asked = kept[0][:, rows] if learn else f[:, :size]
            torch.bmm(q[:, rows], omega, out=asked).exp2_()
            near = torch.bmm(asked, mapped.mT, out=a[:, :size, :size])
            torch.bmm(near, v[:, rows]).baddbmm_(asked, state)
            state.baddbmm_(mapped.mT, v[:, rows], beta=0)
        for i in range(0, 0 if causal else length, block):
            rows = slice(i, i + block)
            asked = kept[0][:, rows] if learn else f[:, : min(block, length - i)]
            torch.bmm(torch.bmm(q[:, rows], omega, out=asked).exp2_(), state)
        for i in range(0, length if learn else 0, block):
            rows = slice(i, i + block)
            size = min(block, length - i)
            asked, mapped, up, down = kept[0][:, rows], kept[1][:, rows], f[:, :size], h[:, :size]
            torch.bmm(g[:, rows], state.mT, out=up)  # of query features, and of the state
            torch.bmm(asked.mT, g[:, rows])
            torch.bmm(v[:, rows], state.mT, out=down)  # of key features, and of values
            gv = torch.bmm(mapped, state)
            if causal:
                near = torch.bmm(asked, mapped.mT, out=a[:, :size, :size])
                gv.baddbmm_(near.mT, g[:, rows])
                torch.bmm(g[:, rows], v[:, rows].mT, out=near)
                up.baddbmm_(near, mapped)
                down.baddbmm_(near.mT, asked)
            torch.bmm(up, back)
            torch.bmm(down, back)

    return run
