"""gTop-k's cluster: 32 workers on 1 Gbit/s Ethernet, as the paper models it.

Table I with the alpha and beta of section IV-C. Computation and communication do not
overlap there (section IV-E), so an iteration is computation, selection and one message
over the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comm_plan.collectives.gtopk import ENTRY_NBYTES
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.plans import selected
from comm_plan.reproduction.published import point_to_point, results


def printed() -> dict[str, Any]:
    """Return the paper's figures."""
    return results("gtopk")


def communicate_s(method: str, workers: int, numel: int, density: float) -> float:
    """Return the time of a method of Table I: float32 values, int32 indices."""
    alpha_s, beta = point_to_point("1GbE")
    k_nbytes = ENTRY_NBYTES * selected(numel, density)
    collective, algorithm, nbytes = {
        "dense": ("allreduce", "ring", 4 * numel),
        "topk": ("allgather", "doubling", k_nbytes * workers),
        "gtopk": ("gtopk", None, k_nbytes),
    }[method]
    terms = COLLECTIVES[collective].terms(workers, algorithm)
    return terms.seconds(nbytes, alpha_s, beta)


@dataclass(frozen=True)
class Model:
    """One of the paper's networks.

    Attributes:
        name: in our list of workloads.
    """

    name: str

    @property
    def numel(self) -> int:
        """Parameters."""
        return int(printed()["parameters"][self.name])

    @property
    def single_s(self) -> float:
        """An iteration on one GPU, as printed in Table VI."""
        return float(printed()["single_gpu"][self.name]["iteration_s"])

    @property
    def batch_size(self) -> int:
        """Images a GPU takes."""
        return int(printed()["single_gpu"][self.name]["batch_size"])

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Fig. 11's three parts of an iteration with gTop-k on 32 workers."""
        found: Mapping[str, float] = printed()["breakdown_s"][self.name]
        return found

    def images_per_s(self, method: str) -> float:
        """Return what Table VII prints for 32 workers."""
        return float(printed()["images_per_s"][self.name][method])

    def iteration_s(self, method: str) -> float:
        """Return the iteration time that Table VII implies."""
        images = float(printed()["workers"] * self.batch_size)
        return images / self.images_per_s(method)

    def implied_s(self, method: str) -> float:
        """Return what that leaves for communication, and selection if any."""
        return self.iteration_s(method) - self.single_s

    def modelled_s(self, method: str, workers: int) -> float:
        """Return the communication by the paper's own alpha and beta."""
        return communicate_s(method, workers, self.numel, printed()["density"])

    def efficiency(self, method: str, workers: int) -> float:
        """Return the modelled share of linear speed-up."""
        compress_s = 0.0 if method == "dense" else self.breakdown["compress"]
        spent_s = self.single_s + compress_s + self.modelled_s(method, workers)
        return self.single_s / spent_s


def crossover(numel: int, density: float) -> int:
    """Return the fewest workers, a power of two, where gTop-k beats top-k."""
    workers = 2
    while communicate_s("gtopk", workers, numel, density) >= communicate_s(
        "topk", workers, numel, density
    ):
        workers *= 2
    return workers
