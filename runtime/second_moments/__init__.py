"""Per-sample second moments: ``sum_z (g_z / |B|)^2`` for every element of a parameter.

g_z is the gradient of sample z's loss, B this rank's mini-batch; the loss is the mean
over the batch. Autograd only returns the sum over z, so the squares must be caught on
the way. VGC and hybrid compare them with the gradient (VGC paper, eq. 3).

================================  ===================================================
:class:`ExactSecondMoments`       models whose layers treat samples one by one; costs
                                  one more weight gradient per layer, or somewhat more
:class:`MicroBatchSecondMoments`  any model and loss; the batch is cut into
                                  micro-batches; an unbiased estimate for the price of
                                  two more copies of the gradients
================================  ===================================================

``benchmarks/second_moments.py`` measures both. Batch normalisation, shared parameters
and layers that return tuples (attention, recurrent ones) have no exact moments and are
refused by name.

Both are attached to a model and answer ``of(parameter)`` from the moment at which the
parameter's post-accumulate-grad hooks run. Hooks run in the order in which they were
registered: attach before whoever asks. Like ``.grad``, the moments of several backward
passes add up until they are asked for.
"""

from comm_plan.runtime.second_moments.exact import ExactSecondMoments
from comm_plan.runtime.second_moments.micro_batches import MicroBatchSecondMoments

__all__ = ["ExactSecondMoments", "MicroBatchSecondMoments"]
