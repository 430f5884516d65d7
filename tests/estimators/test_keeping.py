"""Fitted estimators in files: joblib's, and skops' without a pickle."""

import joblib
import numpy as np
import pytest
from problems import blobs

import pcvm_pymc as pcvm

X, LABEL = blobs(40, seed=5)
NAMES = sorted(name for name in pcvm.__all__ if name.endswith(("Classifier", "Regressor")))


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_default_estimator_predicts_the_same_bits(name, tmp_path):
    skops = pytest.importorskip("skops.io")
    model = getattr(pcvm, name)(random_state=0)
    model.fit(X, X[:, 0] if name == "RVMRegressor" else LABEL)
    joblib.dump(model, tmp_path / "joblib")
    skops.dump(model, tmp_path / "skops")
    types = skops.get_untrusted_types(file=tmp_path / "skops")
    assert all(each.startswith("pcvm_pymc.") for each in types)
    for kept in (joblib.load(tmp_path / "joblib"), skops.load(tmp_path / "skops", trusted=types)):
        for how in {"predict", "predict_proba"} & set(dir(model)):
            np.testing.assert_array_equal(getattr(kept, how)(X + 0.1), getattr(model, how)(X + 0.1))
        assert kept.status_ is model.status_
