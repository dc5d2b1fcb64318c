"""DDP's own compression, by name: what the benchmarks compare with."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from comm_plan.benchmarks import ddp_hooks


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def stepped(hook):
    """Return the parameters after four steps by DDP under ``hook``."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    ddp = DistributedDataParallel(model)
    ddp_hooks.register(ddp, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        ddp(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
    return model.weight.detach()


def test_hooks_change_gradients_as_much_as_their_names_say(alone):
    plain = stepped(None)
    off = {hook: (stepped(hook) - plain).norm() for hook in ("fp16", "powersgd 1")}
    assert 0 < off["fp16"] < 0.1 * off["powersgd 1"]


def test_an_unknown_hook_is_refused(alone):
    with pytest.raises(ValueError, match="no hook is called zip"):
        stepped("zip")
