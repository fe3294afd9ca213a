"""Several processes that train one drafter, as torchrun starts them; one process alone is rank 0 of 1."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from synthspec.errors import SynthspecError, UserError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Found = TypeVar("Found")

# Others wait while rank 0 measures; torchrun itself ends all when one dies.
PATIENCE = timedelta(days=7)


@contextmanager
def joined() -> Iterator[None]:
    """Join the other processes that torchrun has started, as long as the context is open.

    Raises:
        UserError: they are on several machines.
    """
    if os.environ["WORLD_SIZE"] != os.environ["LOCAL_WORLD_SIZE"]:
        raise UserError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes on several machines, and training runs on "
            "the GPUs of one: leave --nnodes out"
        )
    place, backend = int(os.environ["LOCAL_RANK"]), "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(place % torch.cuda.device_count())
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def tell(value: Any) -> Any:
    """What rank 0 gives, on every rank."""
    if count() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def on_first(work: Callable[[], Found]) -> Found:
    """Do something on rank 0 alone, while the others wait; all get what it found.

    Raises:
        SynthspecError: what the work raised, on rank 0; the others end without a word.
    """
    if count() == 1:
        return work()
    error: SynthspecError | None = None
    found: Found | None = None
    if rank() == 0:
        try:
            found = work()
        except SynthspecError as raised:
            error = raised
    found, code = tell((found, error.exit_code if error else None))
    _end(error, code)
    return found  # type: ignore[return-value]


def together(work: Callable[[], Found]) -> Found:
    """Do something on every rank; where one fails, all end.

    Raises:
        SynthspecError: what the work raised on the first rank where it did; on rank 0, the others end without a
            word.
    """
    if count() == 1:
        return work()
    error: SynthspecError | None = None
    found: Found | None = None
    try:
        found = work()
    except SynthspecError as raised:
        error = raised
    errors: list[Any] = [None] * count()
    dist.all_gather_object(errors, error)
    first = next((one for one in errors if one is not None), None)
    _end(first if rank() == 0 else None, first.exit_code if first else None)
    return found  # type: ignore[return-value]


def _end(error: SynthspecError | None, code: int | None) -> None:
    if error is not None:
        raise error
    if code is not None:
        raise SystemExit(code)


def total(numbers: list[float]) -> list[float]:
    """The sums of numbers over all ranks, in float64."""
    if count() == 1:
        return numbers
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    return [float(number) for number in sums]


def share(rows: int) -> slice:
    """Which of so many rows this rank takes: the r-th of R runs of as nearly the same length as can be."""
    return slice(rank() * rows // count(), (rank() + 1) * rows // count())


def check_share(documents: int) -> None:
    """Refuse a batch of so many documents that some rank would have none.

    Raises:
        UserError: there are more ranks.
    """
    if documents < count():
        raise UserError(
            f"train.batch_documents: {documents} samples cannot be shared among {count()} processes: raise it, "
            "or start fewer"
        )


def check_device(device: torch.device) -> None:
    """Refuse a target that several processes cannot have each for itself.

    Raises:
        UserError: there are fewer GPUs than processes, or the device is one that only one process can use.
    """
    if count() > 1 and device.type == "mps":
        raise UserError(
            f"torchrun started {count()} processes, and mps has one GPU for all: leave torchrun out, or set "
            "target.device to cpu"
        )
    if device.type == "cuda" and count() > torch.cuda.device_count():
        raise UserError(
            f"torchrun started {count()} processes for {torch.cuda.device_count()} GPUs: give torchrun "
            f"--nproc-per-node {torch.cuda.device_count()}"
        )


def spread(step: nn.Module, device: torch.device, *, shard: bool) -> nn.Module:
    """A module whose backward pass leaves in every weight the mean of all ranks' gradients.

    Args:
        step: its forward pass is the whole of a step, loss included.
        shard: spread weights, gradients and what optimizers keep over the ranks (FSDP2); the whole weights are
            together from a step's forward to the end of its backward pass. Else every rank has all (DDP).
    """
    if count() == 1:
        return step
    if shard:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # One group for all weights: `Drafter.inject` uses those of every layer before any layer runs.
        fully_shard(step, mesh=init_device_mesh(device.type, (count(),)), reshard_after_forward=False)
        return step
    return DistributedDataParallel(step, gradient_as_bucket_view=True)


def alone(step: nn.Module) -> AbstractContextManager[None]:
    """A backward pass in this context may keep its gradients to itself, since another one follows."""
    return step.no_sync() if isinstance(step, DistributedDataParallel) else nullcontext()  # type: ignore[no-any-return]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over the ranks; each of them must ask."""
    return tensor.full_tensor() if _is_spread(tensor) else tensor


def like(full: Tensor, other: Tensor) -> Tensor:
    """All of a tensor, which every rank has, on the device of another and spread as that is."""
    full = full.to(other.device)
    if _is_spread(other) and full.ndim:
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(full, other.device_mesh, other.placements, src_data_rank=None)
    return full


def _is_spread(tensor: Tensor) -> TypeGuard[DTensor]:
    if count() == 1:
        return False  # what spreads tensors takes a second and 50 MB to import
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
