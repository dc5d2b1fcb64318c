"""What ranks need and what takes seconds to import, before they are forked.

Also what the first optimizer of a process imports, PyTorch's compiler, and the compiled
loops.
"""

import torch
import torch._dynamo

import comm_plan.runtime.trainer  # noqa: F401
from comm_plan.compressors.loops import loops

torch.set_num_threads(1)  # the ranks are the parallelism
loops(torch.device("cpu"))
