"""What nccl-tests and OSU print becomes a network document, or one clear line."""

from __future__ import annotations

import json
import os
import re

import pytest

from comm_plan.commbench import importing, nccl_tests, nccl_tests_json, osu
from comm_plan.errors import DocumentError, InputError, MismatchError
from comm_plan.plans import CollectiveCost, Network, Sample
from comm_plan.tests.support.printed import by_nccl_tests, by_nccl_tests_json, by_osu

NEW_HEAD = (
    "#       size         count      type   redop    root     time   algbw   busbw  "
    "#wrong     time   algbw   busbw  #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    "             (us)  (GB/s)  (GB/s)\n"
)
OLD_HEAD = (
    "#       size         count      type   redop     time   algbw   busbw  error"
    "     time   algbw   busbw  error\n"
    "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)"
    "            (us)  (GB/s)  (GB/s)\n"
)
RANKS = (
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 8388608 step: 2(factor) warmup iters: 5 "
    "iters: 50 agg iters: 1 validation: 1 graph: 0\n"
    "#\n# Using devices\n"
    "#  Rank  0 Group  0 Pid    100 on     node-a device  0 [0000:07:00] NVIDIA X\n"
    "#  Rank  1 Group  0 Pid    101 on     node-a device  1 [0000:0a:00] NVIDIA X\n"
    "#  Rank  2 Group  0 Pid    200 on     node-b device  0 [0000:07:00] NVIDIA X\n"
    "#  Rank  3 Group  0 Pid    201 on     node-b device  1 [0000:0a:00] NVIDIA X\n"
)
NEW = (
    "# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=22907\n"
    "# Collective test starting: all_reduce_perf_mpi\n"
    + RANKS
    + "#\n"
    + NEW_HEAD
    + "node-a:100:100 [0] NCCL INFO Connected all rings\n"
    "           8             2     float     sum      -1    12.50    0.00    0.00"
    "       0    11.00    0.00    0.00       0\n"
    "     8388608       2097152     float     sum      -1  1024.00    8.19   12.29"
    "       0   900.00    9.32   13.98     N/A\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.1\n#\n"
    "# Collective test concluded: all_reduce_perf_mpi\n"
)


def nccl_table(name, row):
    return f"# Collective test starting: {name}\n{RANKS}{NEW_HEAD}{row}\n"


def unnamed_row(kind, rates):
    return f"     8388608       2097152     float{kind}  1048.6    {rates}       0\n"


def only(found):
    (measurement,) = found
    return measurement


def test_nccl_text_of_today():
    found = only(nccl_tests.read(NEW))
    assert (found.collective, found.backend) == ("allreduce", "nccl")
    assert (found.world_size, found.hosts) == (4, ("node-a", "node-b"))
    small, large = found.samples
    assert (small.nbytes, large.nbytes) == (8, 8388608)
    # The out-of-place time, in seconds; the mean is all there is.
    assert large.median_s == large.min_s == large.p95_s == pytest.approx(1.024e-3)
    assert large.iterations == 50


def test_other_lines_between_the_rows_do_no_harm():
    large = "     8388608"
    text = NEW.replace(large, "node-a:100:100 [0] NCCL INFO comm 0x1\n\n" + large)
    assert nccl_tests.read(text) == nccl_tests.read(NEW)


def test_nccl_text_of_several_groups_is_of_one_of_them():
    """``NCCL_TESTS_SPLIT_MASK=0x1``: one GPU of each node, and so the other ones."""
    text = NEW
    for rank in (1, 3):
        text = text.replace(f"Rank  {rank} Group  0", f"Rank  {rank} Group  1")
    text = text.replace("12.29", " 8.19")
    found = only(nccl_tests.read(text))
    assert (found.world_size, found.hosts) == (2, ("node-a", "node-b"))


def test_nccl_text_of_one_rank_is_not_taken_for_one_of_several():
    """As each process prints where nccl-tests was built without MPI."""
    text = re.sub(r"#  Rank  [123].*\n", "", NEW).replace("12.29", " 0.00")
    with pytest.raises(DocumentError, match=r"busbw of 0 at an algbw of 8\.19 .* 4 "):
        importing.parse(text, "f", 4)


def test_nccl_text_without_root_and_name():
    row = (
        "     4194304       1048576     float     sum    520.0    8.07   12.10  2e-07"
        "    510.0    8.22   12.34  2e-07\n"
    )
    ranks = RANKS.replace(" Group  0", "")
    found = only(nccl_tests.read(ranks + OLD_HEAD + row))
    assert (found.collective, found.world_size) == ("allreduce", 4)
    assert found.samples[0].median_s == pytest.approx(520e-6)


@pytest.mark.parametrize(
    ("kind", "rates", "expected"),
    [
        ("     sum      -1", "8.00   12.00", "allreduce"),
        ("     sum      -1", "8.00    6.00", "reduce_scatter"),
        ("     sum      -1", "8.00    8.00", "point_to_point"),
        ("    none       0", "8.00    8.00", "broadcast"),
        ("     sum      -1", "0.13    0.20", "allreduce"),  # 1.54, as rounded
    ],
)
def test_the_rows_tell_the_collective_when_no_line_does(kind, rates, expected):
    text = RANKS + NEW_HEAD + unnamed_row(kind, rates)
    assert only(nccl_tests.read(text)).collective == expected


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("    none      -1", "8.00    6.00"),  # all-gather or all-to-all
        ("    none       0", "8.00    6.00"),  # gather or scatter
        ("     sum       0", "8.00    8.00"),  # reduce
        ("     sum      -1", "8.00   16.00"),  # nothing of four ranks
        ("     sum      -1", "0.00    0.00"),
        ("     sum      -1", "0.01    0.01"),
    ],
)
def test_what_rows_do_not_tell_is_not_guessed(kind, rates):
    text = RANKS + NEW_HEAD + unnamed_row(kind, rates)
    with pytest.raises(DocumentError, match="Collective test starting"):
        nccl_tests.read(text)


@pytest.mark.parametrize("read", [nccl_tests.read, importing.parse])
def test_all_reduce_and_sendrecv_of_two_ranks_look_alike(read):
    same, half = (
        NEW_HEAD + unnamed_row("     sum      -1", f"8.00    {busbw}")
        for busbw in ("8.00", "4.00")
    )
    with pytest.raises(DocumentError, match="Collective test starting"):
        read(same, "f", 2)
    assert only(read(half, "f", 2)).collective == "reduce_scatter"
    assert only(read(same, "f", 3)).collective == "point_to_point"
    with pytest.raises(DocumentError, match="Collective test starting"):
        read(half, "f", None)


def test_old_all_gather_has_neither_redop_nor_root():
    head = OLD_HEAD.replace("redop", "")
    row = "       65536          8192     float    16.57    3.96    2.97  0e+00\n"
    text = "$ ./build/all_gather_perf -b 64K -e 64K\n" + RANKS + head + row
    found = only(nccl_tests.read(text))
    assert found.collective == "allgather"
    assert found.samples[0].nbytes == 65536
    assert found.samples[0].median_s == pytest.approx(16.57e-6)


def test_several_tables_in_one_file():
    row = "1024  256  float  none  0  30.0  0.03  0.03  0  29.0  0.03  0.03  0"
    text = NEW + nccl_table("broadcast_perf", row)
    assert [m.collective for m in nccl_tests.read(text)] == ["allreduce", "broadcast"]


def test_threads_and_gpus_of_one_process_count():
    text = NEW.replace("nThread 1 nGpus 1", "nThread 2 nGpus 4")
    text = text.replace("12.29", "14.33")
    assert only(nccl_tests.read(text)).world_size == 8


@pytest.mark.parametrize(
    "line", ["#  Rank {} Group 0 on a device 0", "# nThread {} nGpus 1 iters: {}"]
)
def test_numbers_that_count_nothing_say_nothing(line):
    found = only(nccl_tests.read(line.format("9" * 5000, "9" * 5000) + "\n" + NEW, "f"))
    assert found == only(nccl_tests.read(NEW, "f"))


def test_rows_of_no_bytes_are_left_out():
    zero = "0  0  float  sum  -1  5.70  0.00  0.00  0  5.54  0.00  0.00  0\n"
    row = "1024  256  float  sum  -1  30.0  0.03  0.05  0  29.0  0.03  0.05  0"
    found = only(nccl_tests.read(nccl_table("all_reduce_perf", zero + row)))
    assert [sample.nbytes for sample in found.samples] == [1024]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NEW.replace("       0   900", "       3   900"), "3 wrong results at 8388608"),
        (NEW.replace("1024.00", "   0.00"), "time 0 us at 8388608"),
        (NEW.replace("all_reduce_perf", "alltoall_perf"), "alltoall_perf is none of"),
        (NEW_HEAD, "no row under size"),
        (re.sub(r"\btime\b", "cputime", NEW), "run nccl-tests without -C"),
    ],
)
def test_bad_nccl_text_is_refused(text, message):
    with pytest.raises(DocumentError, match=message) as caught:
        nccl_tests.read(text, "log.txt")
    assert str(caught.value).startswith("log.txt: ")
    assert "\n" not in str(caught.value)


REPORT = {
    "version": 2,
    "args": ["/opt/build/reduce_scatter_perf", "-J", "alltoall_perf.json"],
    "config": {
        "nthreads": 1,
        "ngpus": 1,
        "iterations": 30,
        "devices": [
            {"rank": 0, "hostname": "node-a"},
            {"rank": 1, "hostname": "node-b"},
        ],
    },
    "results": [
        {
            "size": 1048576,
            "count": 131072,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {
                "time": 250.0,
                "alg_bw": 4.19,
                "bus_bw": 2.1,
                "nwrong": 0.0,
            },
            "in_place": {"time": 240.0, "alg_bw": 4.37, "bus_bw": 2.2, "nwrong": None},
        }
    ],
}


def with_busbw(gb_per_s):
    result = REPORT["results"][0]
    times = result["out_of_place"] | {"bus_bw": gb_per_s}
    return REPORT | {"results": [result | {"out_of_place": times}]}


def test_nccl_json():
    found = only(nccl_tests_json.read(json.dumps(REPORT)))
    assert (found.collective, found.world_size) == ("reduce_scatter", 2)
    assert found.hosts == ("node-a", "node-b")
    (sample,) = found.samples
    assert (sample.nbytes, sample.iterations) == (1048576, 30)
    assert sample.median_s == pytest.approx(250e-6)


def test_nccl_json_names_the_first_device_of_each_process():
    devices = [{"rank": rank, "hostname": "node"} for rank in (0, 8)]
    config = REPORT["config"] | {"ngpus": 8, "devices": devices}
    report = with_busbw(3.93) | {"config": config}
    assert only(nccl_tests_json.read(json.dumps(report))).world_size == 16


def test_nccl_json_of_several_groups_is_of_one_of_them():
    devices = [
        {"rank": 4 * process, "group": process % 2, "hostname": f"node-{process % 2}"}
        for process in range(6)
    ]
    config = REPORT["config"] | {"ngpus": 4, "devices": devices}
    report = with_busbw(3.84) | {"config": config}
    found = only(nccl_tests_json.read(json.dumps(report)))
    assert (found.world_size, found.hosts) == (12, ("node-0",))


def test_nccl_json_of_the_times_of_launches_is_refused():
    result = REPORT["results"][0]
    times = {k: v for k, v in result["out_of_place"].items() if k != "time"}
    launches = REPORT | {
        "results": [result | {"out_of_place": times | {"cpu_time": 4.3}}]
    }
    with pytest.raises(DocumentError, match="run nccl-tests without -C"):
        nccl_tests_json.read(json.dumps(launches))


def test_nccl_json_without_a_name_is_told_by_its_rows():
    alike = with_busbw(4.19) | {"args": []}
    with pytest.raises(DocumentError, match="Collective test starting"):
        nccl_tests_json.read(json.dumps(alike))
    of_three = json.dumps(alike | {"config": {}})
    assert only(importing.parse(of_three, "f", 3)).collective == "point_to_point"


def test_nccl_json_with_single_iterations_has_a_real_spread():
    result = REPORT["results"][0] | {
        "out_of_place_per_iter": {"min_us": 200.0, "p50_us": 245.0, "p95_us": 300.0}
    }
    report = REPORT | {"results": [result]}
    (sample,) = only(nccl_tests_json.read(json.dumps(report))).samples
    times = (sample.min_s, sample.median_s, sample.p95_s)
    assert times == pytest.approx((200e-6, 245e-6, 300e-6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"results": [', "not JSON"),
        ('{"schema": "comm-plan/profile"}', "there is no 'results'"),
        ('{"results": [{"size": 4, "out_of_place": {"time": "x"}}]}', "nccl-tests -J"),
        ('{"results": []}', "no row"),
    ],
)
def test_bad_json_is_refused(text, message):
    with pytest.raises(DocumentError, match=message):
        nccl_tests_json.read(text)


def osu_text(title, size=4096, columns="Avg Latency(us)"):
    head = f"# {title} v7.4\n# Datatype: MPI_CHAR.\n# Size       {columns}\n"
    return f"{head}{size}   20.0\n"


@pytest.mark.parametrize(
    ("title", "collective"),
    [
        ("OSU MPI Allreduce Latency Test", "allreduce"),
        ("OSU MPI-CUDA Reduce_scatter Latency Test", "reduce_scatter"),
        ("OSU MPI Broadcast Latency Test", "broadcast"),
        ("OSU MPI Latency Test", "point_to_point"),
    ],
)
def test_osu_titles(title, collective):
    found = only(osu.read(osu_text(title), world_size=4))
    assert (found.collective, found.backend) == (collective, "mpi")
    assert found.samples[0].nbytes == 4096
    assert found.samples[0].median_s == pytest.approx(20e-6)


def test_osu_all_gather_counts_one_rank():
    found = only(osu.read(osu_text("OSU MPI Allgather Latency Test"), world_size=8))
    assert found.samples[0].nbytes == 8 * 4096


def test_osu_all_gather_needs_the_number_of_ranks():
    with pytest.raises(InputError, match="--world-size"):
        osu.read(osu_text("OSU MPI Allgather Latency Test"))


def test_osu_full_columns():
    text = (
        "# OSU MPI Allreduce Latency Test v5.9\n"
        "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
        "4                       2.81              1.89              3.73        1000\n"
        "1048576               104.30            104.26            104.33         100\n"
    )
    small, large = only(osu.read(text, world_size=2)).samples
    assert (small.min_s, small.p95_s) == pytest.approx((1.89e-6, 3.73e-6))
    assert (small.iterations, large.iterations) == (1000, 100)


def test_osu_results_that_are_wrong_are_refused():
    text = (
        "# OSU MPI Allreduce Latency Test v7.4\n"
        "# Size       Avg Latency(us)        Validation\n"
        "4                       2.81              Pass\n"
        "1048576               104.30              Fail\n"
    )
    with pytest.raises(DocumentError, match="wrong results at 1048576 bytes"):
        osu.read(text, world_size=2)


@pytest.mark.parametrize("time", ["0.00", "nan", "inf"])
def test_osu_times_that_are_none_are_refused(time):
    text = osu_text("OSU MPI Allreduce Latency Test").replace("20.0", time)
    with pytest.raises(DocumentError, match=r"us at 4096 bytes: measure again"):
        osu.read(text, world_size=2)


def test_osu_old_latency_with_its_default_iterations():
    text = osu_text("OSU MPI Latency Test", 0, "   Latency (us)") + "1048576  90.0\n"
    found = only(osu.read(text))
    assert found.world_size == 2
    assert [s.nbytes for s in found.samples] == [0, 1048576]
    assert [s.iterations for s in found.samples] == [10_000, 1000]


@pytest.mark.parametrize(
    "title",
    [
        "OSU MPI Bandwidth Test",
        "OSU MPI Multi Latency Test",
        "OSU MPI Reduce Latency Test",
    ],
)
def test_other_osu_benchmarks_are_refused(title):
    with pytest.raises(DocumentError, match=r'is none of .*, "Latency Test"$'):
        osu.read(osu_text(title), world_size=2)


NETWORK = Network(
    backend="gloo",
    world_size=4,
    hosts=("a", "b"),
    collectives={
        name: CollectiveCost(
            samples=[
                Sample(
                    nbytes=n, median_s=2e-4 * i, min_s=1e-4, p95_s=9e-3, iterations=7
                )
                for i, n in enumerate((64, 4096, 1 << 20), start=1)
            ]
        )
        for name in (
            "allreduce",
            "allgather",
            "reduce_scatter",
            "broadcast",
            "point_to_point",
        )
    },
)


@pytest.mark.parametrize("collective", NETWORK.collectives)
@pytest.mark.parametrize(
    ("printed", "backend"),
    [(by_nccl_tests, "gloo"), (by_nccl_tests_json, "gloo"), (by_osu, "mpi")],
)
def test_what_is_printed_reads_back(printed, backend, collective):
    text = printed(NETWORK, collective)
    found = only(importing.parse(text, world_size=4))
    assert (found.collective, found.backend) == (collective, backend)
    assert found.world_size == 4
    written = NETWORK.collectives[collective].samples
    assert [s.nbytes for s in found.samples] == [s.nbytes for s in written]
    assert [s.iterations for s in found.samples] == [7, 7, 7]
    medians = [s.median_s for s in found.samples]
    assert medians == pytest.approx([s.median_s for s in written])


def test_files_are_put_together_and_fitted(tmp_path):
    (tmp_path / "one.txt").write_text(NEW)
    row = "65536  4096  float  none  -1  40.0  1.64  1.23  0  39.0  1.68  1.26  0"
    (tmp_path / "two.txt").write_text(nccl_table("all_gather_perf", row))
    network = importing.load([tmp_path / "one.txt", tmp_path / "two.txt"])
    assert (network.backend, network.world_size) == ("nccl", 4)
    assert set(network.collectives) == {"allreduce", "allgather"}
    assert all(cost.fit is not None for cost in network.collectives.values())
    assert network.collectives["allreduce"].fit.seconds(8388608) == pytest.approx(
        1.024e-3, rel=1e-3
    )


def test_point_to_point_says_nothing_of_the_ranks_of_other_collectives(tmp_path):
    paths = [tmp_path / "allreduce.txt", tmp_path / "latency.txt"]
    paths[0].write_text(osu_text("OSU MPI Allreduce Latency Test"))
    paths[1].write_text(osu_text("OSU MPI Latency Test"))
    assert importing.load(paths[1:]).world_size == 2
    with pytest.raises(DocumentError, match="number of ranks: give --world-size"):
        importing.load(paths)
    assert importing.load(paths, world_size=16).world_size == 16


def test_the_same_size_twice_is_made_one(tmp_path):
    (tmp_path / "log.txt").write_text(NEW + NEW.replace("1024.00", "2048.00"))
    network = importing.load([tmp_path / "log.txt"])
    sample = network.collectives["allreduce"].samples[-1]
    times = (sample.min_s, sample.median_s, sample.p95_s)
    assert times == pytest.approx((1.024e-3, 1.536e-3, 2.048e-3))
    assert sample.iterations == 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "neither nccl-tests nor OSU"),
        ("", "neither nccl-tests nor OSU"),
        (osu_text("OSU NaN Allreduce Latency Test"), "neither nccl-tests nor OSU"),
        (osu_text("OSU MPI Allreduce Latency Test"), "number of ranks"),
    ],
)
def test_other_files_are_refused_with_one_line(tmp_path, text, message):
    path = tmp_path / "what.txt"
    path.write_text(text)
    with pytest.raises(DocumentError, match=message) as caught:
        importing.load([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_may_have_a_name_that_is_no_text(tmp_path):
    path = tmp_path / os.fsdecode(b"osu-\xff.txt")
    path.write_text(osu_text("OSU MPI Allreduce Latency Test"))
    found = importing.load([path], world_size=2)
    assert found.environment["imported_from"].endswith(r"osu-\udcff.txt")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DocumentError, match="cannot be read: no such file"):
        importing.load([tmp_path / "none.txt"])


def test_ranks_must_agree(tmp_path):
    (tmp_path / "log.txt").write_text(NEW)
    with pytest.raises(MismatchError, match="number of ranks is 4, 8"):
        importing.load([tmp_path / "log.txt"], world_size=8)
