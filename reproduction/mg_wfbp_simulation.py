"""MG-WFBP's simulation: published networks, 10 Gbit/s Ethernet, up to 64 nodes.

The paper gives no computation times, so one printed figure fixes them: how much faster
MG-WFBP is than SyncEASGD (``single``) on 64 nodes. Where backward hides all but the
last message, that ratio falls as the computation gets longer, so one length gives it.
The figures over WFBP are then predictions.

What a layer is decides these. ResNet-50 has 161 gradients in 107 layers, GoogLeNet 128
in 64; the paper merges layers (``Profile.by_layer``). WFBP pays a start-up for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from comm_plan.planner import Settings, find_solver, make_problem
from comm_plan.plans import Network, Profile
from comm_plan.reproduction.models import unit_profile
from comm_plan.reproduction.published import affine, point_to_point, results

MODELS = ("googlenet", "resnet50")
SOLVERS = ("wfbp", "single", "mg-wfbp", "optimal")
BISECTIONS = 18
STARTUP_BISECTIONS = 12


def cluster() -> Network:
    """Return 10 Gbit/s Ethernet by the paper's start-ups and the line's rate."""
    return affine("point_to_point", *point_to_point("10GbE"))


def model(name: str, layers: bool = True) -> Profile:
    """Return a published network whose iteration takes a second."""
    profile = unit_profile(name, results("mg_wfbp")["batch_size"][name])
    return profile.by_layer() if layers else profile


def times(
    profile: Profile,
    network: Network,
    nodes: int,
    solvers: Sequence[str] = SOLVERS,
    algorithm: str = "ring",
) -> dict[str, float]:
    """Return the iteration time of each solver's plan; ``optimal`` is the fastest."""
    settings = Settings(world_size=nodes, algorithm=algorithm, tolerance=0)
    problem = make_problem(profile, network, settings)
    return {
        name: problem.simulate(find_solver(name)(problem)).iteration_s
        for name in solvers
    }


def computation_s(
    profile: Profile, network: Network, nodes: int, gain: float, algorithm: str = "ring"
) -> float:
    """Return how long computation takes if MG-WFBP is ``gain`` faster than ``single``.

    The longest such time: where less of the communication would fit behind backward,
    another one may give the same figure.
    """
    alone_s = times(profile.lasting(0.0), network, nodes, ("single",), algorithm)
    low_s = high_s = 8 * alone_s["single"]

    def found(seconds: float) -> float:
        both = times(
            profile.lasting(seconds), network, nodes, ("single", "mg-wfbp"), algorithm
        )
        return both["single"] / both["mg-wfbp"]

    while found(low_s) < gain:
        low_s, high_s = low_s / 1.2, low_s
    for _ in range(BISECTIONS):
        middle_s = (low_s + high_s) / 2
        if found(middle_s) < gain:
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


@cache
def simulated(name: str, layers: bool = True, algorithm: str = "ring") -> Profile:
    """Return the network as long as the printed gain over SyncEASGD says."""
    gain = printed(name)["over_single"]
    profile = model(name, layers)
    seconds = computation_s(profile, cluster(), 64, gain, algorithm)
    return profile.lasting(seconds)


def printed(name: str) -> Mapping[str, float]:
    """Return the printed gains of MG-WFBP on 64 simulated nodes."""
    found: Mapping[str, float] = results("mg_wfbp")["simulated_64_nodes"][name]
    return found


def over_wfbp(name: str, layers: bool = True, algorithm: str = "ring") -> float:
    """Return how much faster than WFBP MG-WFBP is on 64 nodes."""
    of = times(simulated(name, layers, algorithm), cluster(), 64, algorithm=algorithm)
    return of["wfbp"] / of["mg-wfbp"]


def startup_for(name: str) -> tuple[float, float]:
    """Return the start-up of a message that gives both printed gains, and the time.

    With it go the seconds of computation.
    """
    _, beta = point_to_point("10GbE")
    gains = printed(name)
    profile = model(name)
    low, high = 0.0, point_to_point("10GbE")[0]
    seconds = 0.0
    for _ in range(STARTUP_BISECTIONS):
        alpha_s = (low + high) / 2
        network = affine("point_to_point", alpha_s, beta)
        seconds = computation_s(profile, network, 64, gains["over_single"])
        of = times(profile.lasting(seconds), network, 64)
        if of["wfbp"] / of["mg-wfbp"] > gains["over_wfbp"]:
            high = alpha_s
        else:
            low = alpha_s
    return low, seconds


LENGTHS = tuple(0.05 * 100 ** (step / 10) for step in range(11))
"""Of computation, in times of one all-reduce of everything."""


def worst_loss(network: Network, name: str, nodes: int) -> tuple[float, float]:
    """Return how much longer Algorithm 1 takes than the optimum, at worst, and where.

    As a factor, and the seconds of computation of the worst case.
    """
    profile = model(name)
    alone_s = times(profile.lasting(0.0), network, nodes, ("single",))["single"]
    worst, at_s = 1.0, 0.0
    for length in LENGTHS:
        of = times(
            profile.lasting(length * alone_s), network, nodes, ("mg-wfbp", "optimal")
        )
        ratio = of["mg-wfbp"] / of["optimal"]
        if ratio > worst + 1e-9:
            worst, at_s = ratio, length * alone_s
    return worst, at_s
