"""Fitted costs against fresh measurements on emulated hosts; see ``fit_check``.

Writes ``benchmarks/results/fits-4x1gbit.md``. Needs root on Linux.

    python -m comm_plan.benchmarks.fits_on_hosts --rate 1gbit
"""

import argparse

from comm_plan.benchmarks.commands import module, require_hosts, run_all
from comm_plan.benchmarks.hosts import EmulatedHosts
from comm_plan.benchmarks.tables import RESULTS


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--from", type=int, default=4 * 2**20, dest="start")
    parser.add_argument("--largest", type=int, default=64 * 2**20)
    arguments = parser.parse_args()
    require_hosts()
    check = module(
        "comm_plan.benchmarks.fit_check",
        *("--budget", arguments.budget),
        *("--from", arguments.start, "--largest", arguments.largest),
    )
    with EmulatedHosts(arguments.hosts, arguments.rate) as hosts:
        printed = run_all(hosts, check)[0]
    title = f"# Fits, {arguments.hosts} hosts at {arguments.rate}"
    text = f"{title}\n\n```\n{printed.strip()}\n```\n"
    RESULTS.mkdir(exist_ok=True)
    name = f"fits-{arguments.hosts}x{arguments.rate}.md"
    (RESULTS / name).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
