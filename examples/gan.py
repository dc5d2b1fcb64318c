"""Two networks, two plans: a generator of points on a circle and its critic.

::

    OMP_NUM_THREADS=1 python examples/gan.py profile  # generator.json and critic.json
    comm-plan benchmark-network --local-ranks 2 -o network.json
    comm-plan solve generator.json network.json -o generator-plan.json
    comm-plan solve critic.json network.json -o critic-plan.json
    torchrun --nproc-per-node 2 examples/gan.py generator-plan.json critic-plan.json
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import comm_plan

NOISE, WIDTH, BATCH = 4, 64, 64


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, outputs),
    )


def circle(number: int, generator: torch.Generator) -> torch.Tensor:
    """Return points [N, 2] near the unit circle."""
    angle = 2 * torch.pi * torch.rand(number, generator=generator)
    noise = torch.randn(number, 2, generator=generator)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * noise


def train(generator: nn.Module, critic: nn.Module, steps: int) -> list[float]:
    """Train both in turns; return how far from the circle what is made lies."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    order = torch.Generator().manual_seed(rank)
    makes = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
    tells = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    true, false = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    distances = []
    for _ in range(steps):
        made = generator(torch.randn(BATCH, NOISE, generator=order))
        tells.zero_grad()
        scores = critic(torch.cat([circle(BATCH, order), made.detach()]))
        binary_cross_entropy_with_logits(scores, torch.cat([true, false])).backward()
        tells.step()
        makes.zero_grad()
        critic.requires_grad_(False)  # it only judges
        binary_cross_entropy_with_logits(critic(made), true).backward()
        critic.requires_grad_(True)
        makes.step()
        distances.append((made.detach().norm(dim=1) - 1).abs().mean().item())
    return distances


def main(*how: str) -> None:
    """Profile both models, or train them by their plans or by DDP."""
    torch.manual_seed(0)
    generator, critic = perceptron(NOISE, 2), perceptron(2, 1)
    if how == ("profile",):
        with (
            comm_plan.profile(generator, "generator.json"),
            comm_plan.profile(critic, "critic.json"),
        ):
            train(generator, critic, 20)
        return
    dist.init_process_group("gloo")
    if how == ("ddp",):
        wrapped = DistributedDataParallel(generator), DistributedDataParallel(critic)
        distances = train(*wrapped, 200)
    else:
        comm_plan.parallelize(generator, how[0])
        comm_plan.parallelize(critic, how[1])
        distances = train(generator, critic, 200)
    if dist.get_rank() == 0:
        print(f"distance {distances[0]:.3f}, in the end {distances[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
