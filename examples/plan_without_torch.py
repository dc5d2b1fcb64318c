"""Plan where there is no PyTorch: documents in, a comparison and a plan out.

::

    python examples/plan_without_torch.py
"""

from __future__ import annotations

from pathlib import Path

import comm_plan
from comm_plan.planner import Settings, make_problem, solve, summarise
from comm_plan.plans import Network, Profile

EXAMPLES = Path(comm_plan.__file__).parent / "plans" / "examples"


def main() -> None:
    """Compare two plans for ResNet-50 on 8 workers, and describe the better one."""
    profile = Profile.load(EXAMPLES / "resnet50.profile.json")
    network = Network.load(EXAMPLES / "10gbe-16.network.json")
    problem = make_problem(profile, network, Settings(world_size=8))

    summary = summarise(problem, ["optimal", "threshold"])
    for row in summary.rows:
        print(f"{row.solver:10} {row.iteration_s * 1e3:6.1f} ms an iteration")
    print(summary.verdict)

    plan = solve(problem, "optimal")
    print(f"the optimal plan has {len(plan.buckets)} buckets")


if __name__ == "__main__":
    main()
