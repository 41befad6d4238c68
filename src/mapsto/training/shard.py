"""Models that do not fit: every process holds a share of each parameter and gathers the whole only to compute with it."""

import warnings
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from mapsto.training.flat import check, flatten
from mapsto.training.parallel import World

__all__ = ["Shards"]


class Shards:
    """This process's share of all parameters as one vector; the twin of :class:`~mapsto.training.flat.Flat`.

    Blocks are sharded one by one with torch's ``fully_shard``, the rest as one more: the memory for parameters,
    gradients, averages and optimiser is 1 / W of the whole, and one block at a time is whole. Gradients are sums over
    processes. Checkpoints hold whole tensors, so they fit any number of processes.

    Args:
        model: changed in place; on the device where it is to compute.
        world: the processes.

    Attributes:
        weights: (P / W,) this process's share.
        split: how many of them get weight decay.
    """

    def __init__(self, model: nn.Module, world: World):
        device = next(model.parameters()).device.type
        self.model, self.world = model, world
        world.sharded = True
        self.mesh = DeviceMesh.from_group(world.group, device)
        for stack in [m for m in model.modules() if isinstance(m, nn.ModuleList)]:
            for block in stack:
                if any(isinstance(m, nn.ModuleList) for m in block.modules()) or sum(1 for _ in block.children()) > 1:
                    fully_shard(block, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        # It warns of views as outputs, for those who would change them in place: nothing here does.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        register_fsdp_forward_method(model, "answers")
        named = sorted(model.named_parameters(), key=lambda item: item[1].ndim < 2)
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.weights: Float[Tensor, " P"] = torch.cat([local(p).detach().reshape(-1) for p in self.parameters])
        self.split = sum(local(p).numel() for p in self.parameters if p.ndim >= 2)

    def views(self, vector: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """A vector of this process's share, cut into its parts of the parameters, by name."""
        shapes = [local(p).shape for p in self.parameters]
        parts = vector.split([s.numel() for s in shapes])
        return {n: part.view(s) for n, s, part in zip(self.names, shapes, parts, strict=True)}

    @torch.no_grad()
    def put(self) -> None:
        """Let the model compute with :attr:`weights` as they are now."""
        for p, view in zip(self.parameters, self.views(self.weights).values(), strict=True):
            local(p).copy_(view)
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # an evaluation leaves the root whole

    def gradient(self) -> Float[Tensor, " P"]:
        """This process's share of the sum of all gradients. Frees the parameters' own."""
        parts = [torch.zeros_like(local(p)) if p.grad is None else local(p.grad) for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        return flatten(parts)

    def norm(self, gradient: Float[Tensor, " P"]) -> Tensor:
        """The norm of the whole gradient."""
        square = gradient.double().square().sum().cpu()
        self.world.add(square)
        return square.sqrt()

    def full(self, vector: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """The whole tensors of a vector, by name; all processes call it, and the first gets them."""
        found = {}
        for p, (name, view) in zip(self.parameters, self.views(vector).items(), strict=True):
            whole = DTensor.from_local(view, self.mesh, [Shard(0)], shape=p.shape, stride=p.stride()).full_tensor()
            if self.world.first:
                found[name] = whole.cpu()
        return found

    def load(self, vector: Float[Tensor, " P"], tensors: Mapping[str, Tensor] | None) -> None:
        """Take this process's share of the first's tensors; all processes call it, the others with None.

        Raises:
            ModelFileError: names, shapes or types differ.
        """
        if tensors is not None:
            for name, p in zip(self.names, self.parameters, strict=True):
                check(name, tensors, p)
        for p, (name, view) in zip(self.parameters, self.views(vector).items(), strict=True):
            whole = torch.empty(p.shape, dtype=p.dtype) if tensors is None else tensors[name]
            view.copy_(local(distribute_tensor(whole.to(view.device), self.mesh, [Shard(0)])))


def local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    found: Tensor = tensor.to_local()
    return found
