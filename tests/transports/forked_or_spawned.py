"""A user's own program whose two ranks are children: ``METHOD FATE FOLDER``.

METHOD: ``fork``, ``spawn``, or ``torch`` for ``torch.multiprocessing.spawn``.
FATE of rank 1: it ends by ``returns`` or ``raises``. Rank 0 waits for that, and is well
if it has heard the goodbye.
"""

import multiprocessing
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing

from comm_plan.transports.connect import current_transport

RANKS = 2


def run(rank, fate, folder):
    """Be a rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    transport = current_transport()
    transport.barrier()
    if rank == 0:
        liveness = transport._watch._liveness
        liveness._thread.join()  # it has come to its end with the last link
        liveness._noticed.wait(5 if liveness._judged.is_set() else 0)
        assert liveness._left == [1]
    elif fate == "raises":
        raise ValueError("my data is broken")


def started(method, arguments):
    """Return the processes of all ranks."""
    if method == "torch":
        ranks = torch.multiprocessing.spawn(run, arguments, nprocs=RANKS, join=False)
        return ranks.processes
    context = multiprocessing.get_context(method)
    processes = [
        context.Process(target=run, args=(rank, *arguments)) for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    return processes


def main():
    """Start the ranks; exit with the code of rank 0."""
    method, *arguments = sys.argv[1:]
    try:
        raise KeyError("handled")
    except KeyError:  # which forked ranks take along
        processes = started(method, tuple(arguments))
    for process in processes:
        process.join()
    sys.exit(processes[0].exitcode)


if __name__ == "__main__":
    main()
