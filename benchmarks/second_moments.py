"""What per-sample second moments cost: backward with and without them.

Times forward + backward of small models in a loop: plain, with exact second moments,
and with the micro-batch estimate, and prints the medians. Every variant gets the same
samples in the same process, in turns, so that drifts of the machine hit all alike.

Run::

    python -m comm_plan.benchmarks.second_moments --batch-size 32 --repeats 20
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import nn

from comm_plan.runtime.second_moments import ExactSecondMoments, MicroBatchSecondMoments

MICRO_BATCHES = 4


def mlp(width: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Return three linear layers and the shape of a sample."""
    layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), (width,)


def cnn(width: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a small residual-free network for 32x32 images."""
    channels = max(width // 16, 4)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.GroupNorm(2, channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.GroupNorm(2, 2 * channels),
        nn.ReLU(),
        nn.Conv2d(2 * channels, 2 * channels, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, 10),
    )
    return model, (3, 32, 32)


def sequence(width: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Return the feed-forward half of a transformer block over 64 positions."""
    model = nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.GELU(),
        nn.Linear(4 * width, width),
    )
    return model, (64, width)


MODELS = {"mlp": mlp, "cnn": cnn, "sequence": sequence}


def whole(model: nn.Module, inputs: torch.Tensor) -> None:
    """Run one backward for the batch."""
    model.zero_grad()
    model(inputs).square().flatten(1).sum(1).mean().backward()


def in_parts(model: nn.Module, inputs: torch.Tensor) -> None:
    """Run one backward for each micro-batch."""
    model.zero_grad()
    for part in inputs.chunk(MICRO_BATCHES):
        loss = model(part).square().flatten(1).sum(1).mean()
        (loss / MICRO_BATCHES).backward()


def plain(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    """Return a step without second moments."""
    return lambda: whole(model, inputs)


def exact(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    """Return a step with exact second moments."""
    moments = ExactSecondMoments(model)

    def step() -> None:
        whole(model, inputs)
        for parameter in model.parameters():
            moments.of(parameter)

    return step


def estimated(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    """Return a step with the micro-batch estimate."""
    moments = MicroBatchSecondMoments(model, MICRO_BATCHES)

    def step() -> None:
        in_parts(model, inputs)
        for parameter in model.parameters():
            moments.of(parameter)

    return step


VARIANTS = {"plain": plain, "exact": exact, f"{MICRO_BATCHES} parts": estimated}


def seconds(step: Callable[[], None], device: torch.device) -> float:
    """Return how long one step takes, with the device idle before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def medians_s(
    name: str, width: int, batch_size: int, repeats: int, device: torch.device
) -> dict[str, float]:
    """Return the median seconds of a step of each variant."""
    torch.manual_seed(0)
    model, shape = MODELS[name](width)
    model.to(device)
    inputs = torch.randn(batch_size, *shape, device=device)
    steps = {k: make(deepcopy(model), inputs) for k, make in VARIANTS.items()}
    samples: dict[str, list[float]] = {key: [] for key in steps}
    for _ in range(repeats + 1):
        for key, step in steps.items():
            samples[key].append(seconds(step, device))
    return {key: statistics.median(times[1:]) for key, times in samples.items()}


def main() -> None:
    """Print a table of all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", type=torch.device, default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"forward + backward, batch {options.batch_size}, width {options.width}, ms")
    print(f"{'model':10}" + "".join(f"{key:>18}" for key in VARIANTS))
    for name in MODELS:
        times = medians_s(
            name, options.width, options.batch_size, options.repeats, options.device
        )
        cells = [
            f"{1e3 * time_s:9.2f} ({time_s / times['plain']:.2f}x)"
            for time_s in times.values()
        ]
        print(f"{name:10}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    main()
