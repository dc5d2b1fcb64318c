"""How far the iterations of a run scatter, and whether two runs do into each other."""

from comm_plan.report.spread import overlap
from comm_plan.tests.support import documents as build

PLAN = build.plan(build.profile([0.01, 0.02], [10, 20]), iteration_s=0.04)


def run(*iterations_s):
    """Return a run whose first iteration does not count."""
    return build.run(PLAN, iterations_s)


def test_overlapping_runs_are_told_by_the_middle_halves_of_what_counts():
    spans = overlap(run(9.0, 1.0, 2.0), run(0.0, 1.0, 2.0, 3.0))
    assert spans == ((1.25, 1.75), (1.5, 2.5))


def test_runs_apart_do_not_overlap_however_long_their_first_iterations():
    assert overlap(run(9.0, 1.0, 2.0), run(0.0, 3.0, 4.0)) is None
    assert overlap(run(0.0, 3.0, 4.0), run(9.0, 1.0, 2.0)) is None


def test_of_one_iteration_nobody_knows_how_far_it_scatters():
    assert overlap(run(9.0, 1.0), run(9.0, 1.0, 1.0)) is None
    assert overlap(run(9.0, 1.0, 1.0), run(9.0, 1.0)) is None
