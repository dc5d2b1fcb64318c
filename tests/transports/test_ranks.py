"""Every launcher's environment gives the place and the meeting point."""

from __future__ import annotations

import pytest

from comm_plan.errors import InputError
from comm_plan.transports.ranks import Place, place
from comm_plan.transports.rendezvous import first_host, rendezvous

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "4"}
SRUN = {"SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Place(0, 1, 0, "none")),
        (TORCHRUN, Place(5, 8, 1, "torchrun")),
        ({"RANK": "5", "WORLD_SIZE": "8"}, Place(5, 8, 0, "torchrun")),
        (MPIRUN, Place(2, 4, 1, "mpirun")),
        (PMI | {"MPI_LOCALRANKID": "0"}, Place(3, 4, 0, "mpiexec")),
        (SRUN, Place(6, 8, 2, "srun")),
    ],
)
def test_each_launcher_gives_the_place(environment, expected):
    assert place(environment) == expected


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (TORCHRUN | SRUN, "torchrun"),
        (MPIRUN | SRUN, "mpirun"),
        (SRUN | PMI, "srun"),  # srun --mpi=pmi2
    ],
)
def test_the_innermost_launcher_counts(environment, launcher):
    assert place(environment).launcher == launcher


def test_the_shell_of_a_slurm_job_is_no_rank():
    assert place({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}).world_size == 1


@pytest.mark.parametrize("rank", ["x", "", "8", "-1"])
def test_an_impossible_rank_is_refused_with_its_variables(rank):
    with pytest.raises(InputError, match="RANK, WORLD_SIZE, LOCAL_RANK are"):
        place(TORCHRUN | {"RANK": rank})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu7", "gpu7"),
        ("a,b", "a"),
        ("n[03-05,7],login", "n03"),
        ("rack[2-3]n[07,9]", "rack2n07"),
        ("n[3,5-6]-ib,x", "n3-ib"),
        ("my-host-1,my-host-2", "my-host-1"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_slurm_list(nodelist, host):
    assert first_host(nodelist) == host


def test_the_environment_names_the_rendezvous():
    master = {"MASTER_ADDR": "fe80::1", "MASTER_PORT": "29500"}
    for launcher in (TORCHRUN, SRUN | {"SLURM_STEP_NODELIST": "other"}):
        assert rendezvous(place(launcher), launcher | master) == ("fe80::1", 29500)


def test_slurm_jobs_meet_at_their_first_host_on_ports_of_their_own():
    def meet(job, step):
        ids = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step}
        return rendezvous(place(SRUN), SRUN | ids | {"SLURM_STEP_NODELIST": "n[2-9]"})

    points = [meet("812345", "0"), meet("812345", "1"), meet("812399", "0")]
    assert {host for host, _ in points} == {"n2"}
    assert len({port for _, port in points}) == len(points)
    assert all(1024 < port < 32768 for _, port in points)


@pytest.mark.parametrize(
    "master",
    [
        {},
        {"MASTER_ADDR": "a"},
        {"MASTER_ADDR": "a", "MASTER_PORT": "http"},
        {"MASTER_ADDR": "a", "MASTER_PORT": "65536"},
    ],
)
def test_a_missing_rendezvous_is_refused_with_the_remedy(master):
    with pytest.raises(InputError, match=r"MASTER_ADDR is .* MASTER_PORT .*: set them"):
        rendezvous(place(TORCHRUN), TORCHRUN | master)
