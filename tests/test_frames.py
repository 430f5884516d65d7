"""Tables of pandas and polars: names of features and rows are coordinates."""

import numpy as np
import pandas as pd
import pytest
from problems import blobs, map_result, refused

import pcvm_pymc as pcvm

X, LABEL = blobs(20, seed=8)
TABLE = pd.DataFrame(X, columns=["height", "weight"], index=[f"p{i}" for i in range(20)])
Y = pd.Series(np.where(LABEL > 0, "ill", "well"), index=TABLE.index)


@pytest.fixture(scope="module")
def result():
    return map_result(pcvm.pcvm_model(TABLE, Y, width=1.2))


def test_names_and_index_are_coordinates_of_model_and_result(result):
    model = pcvm.pcvm_model(TABLE, Y, width=1.2)
    assert list(model.coords["feature"]) == ["height", "weight"]
    assert list(model.coords["obs"]) == list(TABLE.index)
    assert list(pcvm.new_data(model, TABLE.iloc[3:6])["coords"]["obs"]) == ["p3", "p4", "p5"]
    assert result["posterior"]["latent"].sel(obs="p3").size == 1
    assert result["constant_data"]["centres"].sel(feature="weight").sizes["basis"] == 20
    assert list(pcvm.pcvm_model(X, LABEL).coords["feature"]) == [0, 1]


def test_predictions_carry_index_and_class(result):
    found = pcvm.predict(result, TABLE.iloc[:4])["predictions"]
    assert list(found["obs"].values) == ["p0", "p1", "p2", "p3"]
    assert found["probability"].coords["class"].item() == "well"
    by_array = pcvm.predict(result, X[:4])["predictions"]
    np.testing.assert_array_equal(by_array["probability"], found["probability"])
    assert list(by_array["obs"].values) == [0, 1, 2, 3]


def test_classes_are_a_coordinate_of_several():
    kinds = np.array(["a", "b", "c"])[np.arange(20) % 3]
    several = map_result(pcvm.mpcvm_model(TABLE, kinds, width=1.2))
    found = pcvm.predict(several, TABLE.iloc[:3])["predictions"]
    assert list(found["class"].values) == ["a", "b", "c"]
    assert found["probability"].sel({"class": "b"}).sizes["obs"] == 3


OTHER_COLUMNS = [
    (TABLE[["weight", "height"]], r"another order than the training rows.*X_new\[\['height'"),
    (TABLE[["height"]], r"lacks the columns \['weight'\]"),
    (TABLE.assign(age=1.0), r"has columns that the training rows lack, \['age'\]"),
    (TABLE.rename(columns={"height": "h"}), r"lacks the columns \['height'\] and has columns"),
]


@pytest.mark.parametrize(("table", "words"), OTHER_COLUMNS)
def test_other_columns_raise(result, table, words):
    refused(words, pcvm.predict, result, table)
    refused(words, pcvm.new_data, pcvm.pcvm_model(TABLE, Y, width=1.2), table)


def test_results_survive_netcdf(result, tmp_path):
    pytest.importorskip("h5netcdf")
    for name in ("a.nc", "a.nc", "a.netcdf"):
        back = pcvm.load(pcvm.save(result, tmp_path / name))
        assert back.attrs == result.attrs
        assert list(back["posterior"]["obs"].values) == list(TABLE.index)
        both = [pcvm.predict(each, TABLE)["predictions"] for each in (back, result)]
        np.testing.assert_array_equal(*(each["probability"] for each in both))


def test_damaged_netcdf_is_named(result, tmp_path):
    pytest.importorskip("h5py")
    content = pcvm.save(result, tmp_path / "a.nc").read_bytes()
    place = content.index(result["constant_data"]["centres"].values[0].tobytes()[:8])
    damaged = bytearray(content)
    damaged[place] ^= 16
    (tmp_path / "b.nc").write_bytes(damaged)
    (tmp_path / "c.nc").write_bytes(content[: len(content) // 2])
    for name in ("b.nc", "c.nc", "nothing.nc"):
        refused(name, pcvm.load, tmp_path / name)


def test_tables_of_polars():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"height": X[:, 0], "weight": X[:, 1]})
    model = pcvm.pcvm_model(table, polars.Series(Y.to_list()), width=1.2)
    assert list(model.coords["feature"]) == ["height", "weight"]
    assert list(model.coords["obs"]) == list(range(20))
    refused("another order", pcvm.new_data, model, table.select(["weight", "height"]))
    classifier = pcvm.MPCVMClassifier(width=1.2, estimation="em").fit(table, Y.to_numpy())
    assert classifier.feature_names_in_.tolist() == ["height", "weight"]
