"""Claims about profiles from a table of layers."""

import pytest

from comm_plan.errors import InputError
from comm_plan.plans.compression import TopK, matrix_of
from comm_plan.profiler import profile_from_layer_times

HEAD = "layer,numel,forward_s,backward_s\n"


@pytest.fixture
def table(tmp_path):
    def write(text):
        path = tmp_path / "net.csv"
        path.write_text(text)
        return path

    return write


def test_backward_runs_from_the_last_row_to_the_first(table):
    path = table(HEAD + "conv, 10, 1.0, 2.0\nfc, 30, 0.5, 0.25\n")
    profile = profile_from_layer_times(path, batch_size=8)
    ready = [(tensor.name, tensor.numel, tensor.ready_s) for tensor in profile.tensors]
    assert ready == [("fc", 30, 0.25), ("conv", 10, 2.25)]
    assert (profile.forward_s, profile.backward_s) == (1.5, 2.25)
    assert (profile.model.name, profile.model.parameters) == ("net", 40)


def test_layers_are_weights_to_topk_and_no_matrices_to_powersgd(table):
    """Their shapes are not known."""
    (layer,) = profile_from_layer_times(table(HEAD + "fc, 3000, 0, 1\n")).tensors
    assert TopK(density=0.01).fitted([layer.shape]) == TopK(density=0.01)
    assert matrix_of(layer.shape, 1) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer,numel,forward_s\nfc,1,0\n", "column backward_s is missing"),
        (HEAD, "there are no layers"),
        (HEAD + "fc,1,0,x\n", "line 2: 'x' is no number"),
        (HEAD + "fc,9408.0,0,1\n", r"line 2: '9408\.0' is no whole number"),
        (HEAD + "fc,1,0\n", "line 2: '' is no number"),
        (HEAD + "fc,9,408,0,1\n", "line 2: more cells than columns"),
        (HEAD + "fc,0,0,1\n", "line 2: give a name, a numel above 0"),
        (HEAD + "fc,1,0,nan\n", "line 2: give a name"),
        (HEAD + "fc,1,0,1\nfc,2,0,1\n", "layer fc is listed twice"),
        (HEAD + f"fc,{10**17},0,1\n", r"net\.csv: "),
        (HEAD + "fc,1,0,1e12\n", r"net\.csv: "),
        (HEAD + f"{'x' * 200_000},1,0,1\n", "field larger"),
    ],
)
def test_a_bad_table_is_refused_with_the_line_and_the_remedy(table, text, message):
    with pytest.raises(InputError, match=message):
        profile_from_layer_times(table(text))


def test_a_byte_order_mark_is_no_part_of_the_first_column(table):
    assert profile_from_layer_times(table("\ufeff" + HEAD + "fc,1,0,1\n")).tensors


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        profile_from_layer_times(tmp_path / "none.csv")
