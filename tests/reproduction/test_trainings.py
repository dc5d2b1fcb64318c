"""Claims about the papers' trainings; that they run is left to the command."""

import pytest
import torch

from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.terngrad import TernGradCompressor
from comm_plan.errors import InputError
from comm_plan.plans.compression import TernGrad
from comm_plan.profiler import profile_from_speed
from comm_plan.reproduction import trained, trainings
from comm_plan.reproduction.published import DATA
from comm_plan.reproduction.ternarised import exchange, train_ternarised
from comm_plan.runtime.agreement import check_plan
from comm_plan.workloads import load


@pytest.fixture(scope="module")
def kept():
    return trainings.Trainings.read(DATA / trainings.FILE)


def test_the_kept_trainings_are_those_of_the_jobs(kept):
    assert [run.name for run in kept.runs] == [job.name for job in trainings.jobs()]
    assert len(kept.ternarised) > 1


def test_the_page_says_that_no_training_is_as_printed():
    specs = [job.compressor for job in trainings.jobs() if job.compressor is not None]
    assert not any(spec.as_printed for spec in specs)
    assert (
        "keep what Algorithm 4 and Fig. 1 lose as printed" in trained.chapter().source
    )


def test_trainings_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(InputError, match="leave --models-only out"):
        trainings.Trainings.read(tmp_path / trainings.FILE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "holds no trainings"),
        ('{"context": {}}', "holds no trainings"),
        ('{"context": {}, "runs": [], "ternarised": []}', "lacks dense"),
    ],
)
def test_broken_trainings_are_refused(tmp_path, text, message):
    (tmp_path / trainings.FILE).write_text(text)
    with pytest.raises(InputError, match=message):
        trainings.Trainings.read(tmp_path / trainings.FILE)


def test_the_ratio_of_vgc_grows_with_alpha_and_over_the_training(kept):
    runs = [kept.run(trainings.vgc_name(spec)) for spec in trainings.ALPHAS]
    assert [run.ratio for run in runs] == sorted(run.ratio for run in runs)
    assert all(run.ratios[-1] > run.ratios[0] for run in runs)


def test_a_lower_density_compresses_more(kept):
    ratios = [kept.run(f"gtopk {density:g}").ratio for density in trainings.DENSITIES]
    assert ratios == sorted(ratios)


def test_a_curve_has_the_mean_of_equal_parts():
    values = [float(n) for n in range(10)]
    assert trainings.windows(values) == [0.5, 2.5, 4.5, 6.5, 8.5]


def test_every_plan_is_for_the_workload():
    workload = load(trainings.WORKLOAD)
    profile = profile_from_speed(workload, 1e9)
    for job in trainings.jobs():
        check_plan(trainings.plan(profile, job), workload.model, trainings.RANKS)


def test_ranks_in_one_process_exchange_ternary_gradients():
    slots = [Slot("a", 3), Slot("b", 1)]
    ranks = [
        TernGradCompressor(
            TernGrad(clip=0), "allgather", slots, Context(2, r, torch.device("cpu"), r)
        )
        for r in range(2)
    ]
    # Elements of the largest magnitude on any rank, and zeros, are never rounded.
    gradients = [
        [torch.tensor([2.0, 0.0, -2.0]), torch.tensor([1.0])],
        [torch.tensor([2.0, 0.0, 2.0]), torch.tensor([-1.0])],
    ]
    first, second = exchange(ranks, gradients, step=0)
    assert first.tolist() == [2.0, 0.0, 0.0]
    assert second.tolist() == [0.0]


def test_a_ternary_training_is_seen_from_its_first_step_on():
    seen = train_ternarised(ranks=2, steps=5)
    assert [moment.step for moment in seen] == [0, 1, 2, 3, 4]
    for moment in seen:
        assert sum(moment.histogram) == pytest.approx(1.0, abs=1e-3)
        assert 0 < moment.length < 1
        assert 0 < moment.angle_degrees < moment.mean_angle_degrees < 90
