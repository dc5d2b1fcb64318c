"""TernGrad's performance model, appendix B (Eq. 27 to 30).

Throughput of j machines with i GPUs each, K images a GPU. Inside a machine gradients
pass ``log2 i`` times between GPUs and once to the CPU, between machines ``log2 j``
times, one after another and after the computation::

    T_comm   = |g|/C_gpu log2 i + |g|/C_cpu + (latency + |g|/C_net) log2 j
    T_strong = (T(1,1,K) - |g|/C_cpu) / N + T_comm                             (Eq. 27)
    T_weak   =  T(1,1,K) - |g|/C_cpu + T_comm                                  (Eq. 29)

The figure has no numbers and the paper no computation times, so those are estimated
from the GPUs' data sheets. ``|g|`` of TernGrad is a twentieth, five trits a byte, but
for the last layer, which stays dense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from comm_plan.plans.compression import TernGrad
from comm_plan.reproduction.published import results

UTILISATION = 0.5
"""Of a GPU's peak, in training."""

BACKWARD_FLOPS = 2
"""Operations of backward for each one of forward."""


@dataclass(frozen=True)
class Cluster:
    """Machines with the same GPUs.

    Attributes:
        gpu_flops_per_s: peak of a GPU.
        gpu_bytes_per_s: C_gwd, between GPUs of a machine.
        cpu_bytes_per_s: C_cwd, between GPU and CPU.
        network_bytes_per_s: C_nwd, between machines.
        latency_s: C_ncost, of a message between machines.
    """

    gpu_flops_per_s: float
    gpu_bytes_per_s: float
    cpu_bytes_per_s: float
    network_bytes_per_s: float
    latency_s: float

    def communicate_s(self, nbytes: float, per_machine: int, machines: int) -> float:
        """Return T_comm."""
        inside_s = nbytes / self.gpu_bytes_per_s * math.log2(per_machine)
        each_s = self.latency_s + nbytes / self.network_bytes_per_s
        return inside_s + nbytes / self.cpu_bytes_per_s + each_s * math.log2(machines)


@dataclass(frozen=True)
class Network:
    """One of the three networks.

    Attributes:
        batch_size: K.
        parameters: how many.
        last_layer: their share in the last layer.
        forward_flops: of one image, two for a multiplication and addition.
    """

    batch_size: int
    parameters: int
    last_layer: float
    forward_flops: float

    @property
    def dense_nbytes(self) -> float:
        """Bytes of the gradients."""
        return 4.0 * self.parameters

    @property
    def ternary_nbytes(self) -> float:
        """Bytes of trits, and of the last layer in float32."""
        trits = TernGrad().message_nbytes([self.parameters], "allgather")
        return (1 - self.last_layer) * trits + self.last_layer * self.dense_nbytes

    def compute_s(self, cluster: Cluster, images: float) -> float:
        """Return the estimated time of a GPU for so many images."""
        flops = (1 + BACKWARD_FLOPS) * self.forward_flops * images
        return flops / (UTILISATION * cluster.gpu_flops_per_s)


def cluster(name: str) -> Cluster:
    """Return one of the two clusters of Fig. 5."""
    return Cluster(**results("terngrad")["clusters"][name])


def network(name: str) -> Network:
    """Return one of the three networks."""
    return Network(**results("terngrad")["networks"][name])


def spread_out(gpus: int) -> tuple[int, int]:
    """Return GPUs per machine and machines."""
    per_machine = min(gpus, results("terngrad")["gpus_per_node"])
    return per_machine, gpus // per_machine


def weak_images_per_s(of: Network, at: Cluster, gpus: int, nbytes: float) -> float:
    """Return the throughput of weak scaling, Eq. 30: K images on each GPU.

    ``compute_s`` stands for ``T(1,1,K) - |g|/C_cpu``.
    """
    seconds = of.compute_s(at, of.batch_size)
    seconds += at.communicate_s(nbytes, *spread_out(gpus))
    return gpus * of.batch_size / seconds


def strong_images_per_s(of: Network, at: Cluster, gpus: int, nbytes: float) -> float:
    """Return the throughput of strong scaling, Eq. 28: K images on all GPUs."""
    seconds = of.compute_s(at, of.batch_size / gpus)
    seconds += at.communicate_s(nbytes, *spread_out(gpus))
    return of.batch_size / seconds


def speedup(of: Network, at: Cluster, gpus: int) -> float:
    """Return the throughput with ternary gradients over that with float ones."""
    ternary = weak_images_per_s(of, at, gpus, of.ternary_nbytes)
    return ternary / weak_images_per_s(of, at, gpus, of.dense_nbytes)
