"""How the solvers' time grows with the number of tensors.

Run with ``python -m comm_plan.benchmarks.solver_growth`` or as a file. Each cell is the
fastest of three runs on a random model with affine and with measured costs. ``plan`` is
what ``solve`` does: it makes the problem, solves it, and sets the baselines beside it.

    python benchmarks/solver_growth.py --sizes 10,100,1000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from comm_plan.planner import BASELINES, SOLVERS, Settings, make_problem, solve
from comm_plan.plans import (
    CollectiveCost,
    CompressionCost,
    Device,
    Model,
    Network,
    Plan,
    Profile,
    Sample,
    TensorTiming,
)
from comm_plan.plans.compression import spec_class

SIZES = (10, 100, 1000, 10_000, 100_000)
BACKWARD_S = 0.2
MODEL_NBYTES = 4 * 100_000_000
ALPHA_S, BETA_S_PER_BYTE = 9.08e-4, 7.4e-10  # published, 10GbE, 16 workers
RUNS = 3
COMPRESSORS = ("fp16", "qsgd", "terngrad", "topk")
CHOOSING = ("lags", "auto")
"""Solvers that choose how each tensor is compressed, whatever it costs in accuracy."""

MOST_CHOOSING = 1000


def random_profile(tensors: int) -> Profile:
    """Return a model of about 100 million parameters in that many tensors."""
    rng = np.random.default_rng(tensors)
    ready = np.sort(rng.uniform(0, BACKWARD_S, tensors)).tolist()
    shares = rng.lognormal(0, 2, tensors)
    numels = (
        np.maximum(1, shares / shares.sum() * MODEL_NBYTES / 4).astype(int).tolist()
    )
    return Profile(
        model=Model(name="random", fingerprint="sha256:0", parameters=sum(numels)),
        device=Device(type="cpu", name="none"),
        batch_size=1,
        forward_s=BACKWARD_S / 2,
        backward_s=BACKWARD_S,
        update_s=0.0,
        tensors=tuple(
            TensorTiming(
                name=f"{i}",
                layer=f"{i}",
                shape=(n,),
                numel=n,
                dtype="float32",
                ready_s=r,
            )
            for i, (n, r) in enumerate(zip(numels, ready, strict=True))
        ),
    )


def affine_network() -> Network:
    """Return a network with one published line."""
    return _network(CollectiveCost.affine(ALPHA_S, BETA_S_PER_BYTE))


def measured_network() -> Network:
    """Return a network with 26 noisy samples around that line, 4 bytes to 128 MiB."""
    rng = np.random.default_rng(0)
    samples = []
    for power in range(2, 28):
        clean = ALPHA_S + BETA_S_PER_BYTE * 2**power
        seconds = clean * rng.lognormal(0, 0.1)
        samples.append(
            Sample(
                nbytes=2**power,
                median_s=seconds,
                min_s=seconds,
                p95_s=seconds,
                iterations=20,
            )
        )
    return _network(CollectiveCost(samples=tuple(samples)))


def _network(allreduce: CollectiveCost) -> Network:
    return Network(backend="gloo", world_size=16, collectives={"allreduce": allreduce})


def slow_network() -> Network:
    """Return a network ten times slower, with the collectives of all methods."""
    beta_s_per_byte = 10 * BETA_S_PER_BYTE
    gathered = CollectiveCost.affine(ALPHA_S / 2, beta_s_per_byte / 2)
    return Network(
        backend="gloo",
        world_size=16,
        collectives={
            "allreduce": CollectiveCost.affine(ALPHA_S, beta_s_per_byte),
            "allgather": gathered,
            "gtopk": gathered,
        },
    )


def with_compressors(profile: Profile) -> Profile:
    """Return ``profile`` with what the methods cost on a processor, roughly."""

    def cost(numel: int, density: float) -> CompressionCost:
        each_s = 1e-5 + 3e-11 * numel
        return CompressionCost(
            numel=numel, density=density, compress_s=each_s, decompress_s=each_s / 2
        )

    compression = {
        kind: tuple(
            cost(numel, density)
            for density in ((0.1, 0.01, 0.001) if spec_class(kind).sparse else (1.0,))
            for numel in (2**10, 2**17, 2**24)
        )
        for kind in COMPRESSORS
    }
    return profile.model_copy(update={"compression": compression})


def fastest_s(work: Callable[[], object]) -> float:
    """Return the fastest of ``RUNS`` runs."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def planned(profile: Profile, network: Network) -> Plan:
    """Return the plan that ``solve`` makes."""
    return solve(make_problem(profile, network))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="solver seconds against tensors")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    sizes = [int(size) for size in parser.parse_args().sizes.split(",")]
    columns = [*BASELINES, "plan"]
    print(f"{'cost':10}{'tensors':>9}" + "".join(f"{c:>12}" for c in columns))
    for cost, network in (
        ("affine", affine_network()),
        ("measured", measured_network()),
    ):
        for size in sizes:
            profile = random_profile(size)
            problem = make_problem(profile, network)
            times = [fastest_s(partial(SOLVERS[name], problem)) for name in BASELINES]
            times.append(fastest_s(partial(planned, profile, network)))
            cells = "".join(f"{seconds:12.4f}" for seconds in times)
            print(f"{cost:10}{size:9d}" + cells)
    print(f"\n{'cost':10}{'tensors':>9}" + "".join(f"{c:>12}" for c in CHOOSING))
    for size in (size for size in sizes if size <= MOST_CHOOSING):
        settings = Settings(accuracy="loss")
        problem = make_problem(
            with_compressors(random_profile(size)), slow_network(), settings
        )
        times = [fastest_s(partial(solve, problem, name)) for name in CHOOSING]
        cells = "".join(f"{seconds:12.4f}" for seconds in times)
        print(f"{'affine':10}{size:9d}" + cells)


if __name__ == "__main__":
    main()
