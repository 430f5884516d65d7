from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from problems import basis_of, blobs, laplacian, log_joint, map_result, refused
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from scipy.stats import lognorm
from scipy.stats import t as student

from pcvm_pymc import HalfHorseshoe, Hyperprior, new_data, pcvm_latent, pcvm_model, predict
from pcvm_pymc.core.pieces import kernels
from pcvm_pymc.core.pieces.centres import choose_means
from pcvm_pymc.core.pieces.kernels import RBF, median_distance
from pcvm_pymc.core.pieces.priors import prior_latent_size
from pcvm_pymc.core.pieces.validation import InputWarning
from pcvm_pymc.inference.prediction import latent_draws
from pcvm_pymc.model.bases import as_piece
from pcvm_pymc.model.builders import mpcvm_model, mrvm_model, rvm_model, sparse_probit_model
from pcvm_pymc.model.graphs import numbers, shape_of
from pcvm_pymc.model.parts import find_parts
from pcvm_pymc.model.read import read

QUICK = {"draws": 20, "tune": 20, "chains": 1, "random_seed": 1, "quiet": True}
QUICK |= {"max_treedepth": 3, "progressbar": False, "compute_convergence_checks": False}
X, LABEL = blobs(30, seed=0, fixed=True)
Y = (LABEL > 0).astype(int)


@pytest.fixture(scope="module")
def model():
    return pcvm_model(X, Y, width=1.1)


def test_core_log_joint_is_pymcs():
    hyperprior = Hyperprior(2.0, 0.3, 1.5, 0.7)
    model = pcvm_model(X, Y, width=1.1, hyperprior=hyperprior, precision="joint")
    logp = model.compile_logp(jacobian=False)
    problem = read(pcvm_model(X, Y, width=1.1, hyperprior=hyperprior)).problem
    rng = np.random.default_rng(1)
    for _ in range(3):
        size, alpha = rng.exponential(size=(2, 30))
        bias, beta = rng.normal(), rng.exponential()
        logs = {"magnitude": size, "precision": alpha, "bias_precision": beta}
        point = {f"{name}_log__": np.log(value) for name, value in logs.items()}
        found = logp(point | {"bias": np.float64(bias)})
        wanted = log_joint(problem, size * problem.sign, bias, alpha, beta)
        assert found == pytest.approx(wanted, abs=1e-8)


def test_names_coordinates_and_signs(model):
    assert {rv.name for rv in model.free_RVs} == {"magnitude", "bias", "rate"}
    assert [rv.name for rv in model.observed_RVs] == ["label"]
    assert {"obs", "basis", "class"} <= set(model.coords)
    assert model.coords["class"] == (0, 1)
    np.testing.assert_array_equal(model["signs"].get_value(), LABEL)
    other = pcvm_model(X, np.ones_like(Y), signs=LABEL)  # signs apart from labels
    np.testing.assert_array_equal(other["signs"].get_value(), LABEL)
    assert other["y"].get_value().all()


def in_own_model(X, y, **options):
    with pm.Model() as model:
        pcvm_latent(X, y, **options)
    return model


def cubic(X, Z, width):
    return np.abs(X[:, :1] - Z[:, 0]) ** 3 / width


MATRIX = kernels.MatrixRBF([[2.0, 0.3], [0.3, 1.0]])
COVARIANCE = pm.gp.cov.Matern52(2, ls=0.8)
#: what is given, and Phi of rows and centres at a factor of the width
DATA = {
    "rbf": ({"width": 0.9}, lambda A, Z, k: RBF(k * 0.9)(A, Z)),
    "vector": ({"width": [0.9, 2.0]}, lambda A, Z, k: RBF(k * np.array([0.9, 2.0]))(A, Z)),
    "random": ({"width": pm.LogNormal}, lambda A, Z, k: RBF(0.7)(A, Z)),
    "random vector": ({"width": (2,)}, lambda A, Z, k: RBF(np.array([0.7, 0.7]))(A, Z)),
    "spline": ({"kernel": "linear-spline"}, lambda A, Z, k: kernels.LinearSpline()(A, Z)),
    "matrix": ({"kernel": MATRIX}, lambda A, Z, k: replace(MATRIX, width=k)(A, Z)),
    "function": ({"kernel": cubic, "width": 3.0}, lambda A, Z, k: cubic(A, Z, 3.0 * k)),
    "covariance": ({"kernel": COVARIANCE}, lambda A, Z, k: COVARIANCE(A, Z).eval()),
    "linear": ({"features": "linear"}, lambda A, Z, k: A),
    "quadratic": (
        {"features": "quadratic"},
        lambda A, Z, k: kernels.feature_matrix(A, "quadratic"),
    ),
}


@pytest.mark.parametrize("case", DATA)
@pytest.mark.parametrize("several", [False, True])
def test_what_is_set_is_what_the_model_computes_from(case, several):
    """All data are in the graph; each that can be set changes the latent function to NumPy's value."""
    given, Phi = DATA[case]
    given = dict(given)
    if "random" in case:
        given["width"] = pm.LogNormal.dist(0.0, 0.5, shape=2 if case.endswith("vector") else ())
    is_kernel = "features" not in given
    build = sparse_probit_model if not is_kernel else mrvm_model if several else rvm_model
    own = {"likelihood": "probit"} if build is rvm_model else {}
    target = np.arange(30) % 3 if build is mrvm_model else Y
    model = build(X, target, **given | own | ({"basis": X[:6]} if is_kernel else {}))
    constants = [each for each in model.data_vars if isinstance(each, Constant)]
    known = set(ancestors(model.deterministics + model.observed_RVs))
    assert set(model.data_vars) - {*constants, model["y"]} <= known
    assert {"X"} <= set(model.named_vars)
    assert not {"inputs", "Phi", "squared_distance"} & set(model.named_vars)
    weight = np.random.default_rng(1).normal(size=shape_of(model["weight"]))
    point = {model["weight"]: weight, model["bias"]: 0.3 * np.ones(weight.shape[1:])}
    if "random" in case:
        point[model["width"]] = np.array([0.7, 0.7]) if case.endswith("vector") else 0.7

    def check(rows, centres, k=1.0, of=model):
        at = {of[x.name]: value for x, value in point.items()}
        wanted = Phi(np.asarray(rows), centres, k) @ weight + 0.3
        np.testing.assert_allclose(numbers(of["latent"], at), wanted, rtol=1e-10, atol=1e-12)

    check(X, X[:6])
    for rows in (X + 0.1, pd.DataFrame(X[:4] + 0.05, index=list("abcd")), X):
        with model:
            pm.set_data({"X": rows})
        check(rows, X[:6])
        assert model["y"].get_value().shape == (len(rows),)
    plain = pm.do(model, {})  # an ordinary model, which has no rule of its own for new rows
    with plain:
        pm.set_data({"X": X[::-1] - 0.2})
    check(X[::-1] - 0.2, X[:6], of=plain)
    with model:
        if is_kernel:
            pm.set_data({"centres": X[6:12]})
        width = {"width", "kernel_width"} & {each.name for each in model.data_vars}
        for name in width:
            pm.set_data({name: 1.5 * model[name].get_value()})
    check(X, X[6:12], 1.5 if width else 1.0)
    for each in constants:
        with model, pytest.raises(TypeError, match=each.name):
            pm.set_data({each.name: [2.0]})


def test_new_rows_have_their_names_and_placeholders():
    model = pcvm_model(X, Y)
    with model:
        pm.set_data({"y": Y[3::-1], "X": X[:4] + 0.05})  # in any order, and without coords
        np.testing.assert_array_equal(model["y"].get_value(), Y[3::-1])
        pm.set_data({"X": X})
        pm.set_data({"X": pd.DataFrame(X[:4], index=list("abcd"))})
    np.testing.assert_array_equal(model["y"].get_value(), np.zeros(4))
    assert model.coords["obs"] == tuple("abcd")
    with pytest.raises(ValueError, match="X_new has 1 features; needed 2"), model:
        pm.set_data({"X": X[:, :1]})


of_kernels = partial(sparse_probit_model, features="kernel")
BUILDERS = [pcvm_model, rvm_model, mpcvm_model, mrvm_model, of_kernels, in_own_model]


@pytest.mark.parametrize("build", BUILDERS)
def test_the_default_width_is_the_median_distance_and_is_said(build, caplog):
    with caplog.at_level("INFO", "pymc.pcvm_pymc"):
        model = build(X, Y)
    assert model["width"].get_value() == pytest.approx(median_distance(X))
    assert caplog.messages[0].startswith(f"width={median_distance(X):.4g}: the median distance")
    build(X, Y, width=1.0)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(("kernel", "order"), [("rbf", 2), ("laplacian", 1)])
@pytest.mark.parametrize("build", BUILDERS)
def test_a_log_normal_width_is_around_the_median_distance_and_is_said(build, kernel, order, caplog):
    with caplog.at_level("INFO", "pymc.pcvm_pymc"):
        model = build(X, Y, width="lognormal", kernel=kernel)
    middle = median_distance(X, order)
    assert f"log-normal around {middle:.4g}, the median distance" in caplog.messages[0]
    at = middle * np.exp([-1.0, 0.0, 0.5])
    found = pm.logp(model["width"], at).eval()
    np.testing.assert_allclose(found, lognorm(0.7, scale=middle).logpdf(at), rtol=1e-12)
    refused("width='median' is unknown; use one of", build, X, Y, width="median")


def test_of_an_unknown_width_centres_without_labels():
    options = {"basis": "kmeans", "signs": "both"}
    widths = 1.0, pm.LogNormal.dist(0.0, 0.7)
    fixed, unknown = (pcvm_model(X, Y, width=width, **options) for width in widths)
    other = pcvm_model(X, 1 - Y[::-1], width="lognormal", **options)
    for model, label in ((fixed, Y), (unknown, None), (other, None)):
        wanted = choose_means(X, label, random_state=0)[0]
        np.testing.assert_array_equal(model["centres"].get_value(), wanted)


@pytest.mark.parametrize("build", [pcvm_model, rvm_model, sparse_probit_model, in_own_model])
def test_columns_of_other_scales_are_noticed(build):
    with pytest.warns(InputWarning, match="column 1 has the standard deviation .*; standardise"):
        build(X * [1.0, 100.0], Y)
    with pytest.warns(InputWarning, match="column long has the standard deviation"):
        build(pd.DataFrame(X * [100.0, 1.0], columns=["long", "short"]), Y)
    build(X * [1.0, 30.0], Y)
    build(np.column_stack([X, np.full(len(X), 0.1)]), Y)  # a constant column says nothing
    if build is not sparse_probit_model:
        build(X * [1.0, 100.0], Y, width=[1.0, 100.0])


@pytest.mark.parametrize(("width", "found"), [(0.01, "an identity"), (100.0, "constant")])
def test_a_width_that_tells_all_rows_apart_or_none_is_noticed(width, found):
    with pytest.warns(InputWarning, match=f"width={width} the basis .* nearly {found}") as caught:
        pcvm_model(X, Y, width=width)
    assert caught[0].filename == __file__
    pcvm_model(X, Y, width=0.3 * median_distance(X))
    pcvm_model(X, Y, width=3 * median_distance(X))


def test_new_data_for_a_random_width_and_a_covariance():
    with pm.Model() as model:
        pcvm_model(X, Y, kernel=pm.gp.cov.ExpQuad(2, ls=pm.LogNormal("ell", 0.0, 0.5)))
    values = new_data(model, X[:3])
    np.testing.assert_array_equal(values["new_data"]["X"], X[:3])
    np.testing.assert_array_equal(values["new_data"]["y"], [0, 0, 0])
    other = new_data(pcvm_model(X, Y, width=pm.LogNormal.dist(0.0, 1.0)), X[:3])
    np.testing.assert_array_equal(other["new_data"]["X"], X[:3])
    refused("X_new has 1 features; needed 2", new_data, model, X[:3, :1])


COMBINED = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "scaled": lambda a, b: 2.0 * a + 0.5,
    "power": lambda a, b: a**3.0,
}


@pytest.mark.parametrize("combine", COMBINED.values(), ids=COMBINED)
def test_combined_covariances_are_kernels(combine):
    hyperprior = Hyperprior.plug_in()
    parts = pm.gp.cov.ExpQuad(2, ls=0.8), pm.gp.cov.Matern52(2, ls=1.5)
    A, B = (as_piece(part)(X, X) for part in parts)
    model = pcvm_model(X, Y, kernel=combine(*parts), hyperprior=hyperprior)
    np.testing.assert_allclose(basis_of(model), combine(A, B), rtol=1e-12)
    with pm.Model() as free:
        ell = pm.LogNormal("ell", 0.0, 0.5)
        kernel = combine(pm.gp.cov.ExpQuad(2, ls=ell), parts[1])
        pcvm_model(X, Y, kernel=kernel, hyperprior=hyperprior)
    point, prior = model.initial_point(), pm.LogNormal.dist(0.0, 0.5)
    found = free.compile_logp(jacobian=False)({**point, "ell_log__": np.log(0.8)})
    known = model.compile_logp(jacobian=False)(point) + pm.logp(prior, 0.8).eval()
    # PyMC's distances round: their root is a Matern's
    assert found == pytest.approx(known, abs=1e-5)


def test_predictions_need_the_kernel_of_the_model():
    def other(A, B, width):
        return laplacian(A, B, 2.0 * width)

    covariance, longer = (pm.gp.cov.Matern52(2, ls=ls) for ls in (0.8, 0.9))
    for kernel, width, wrong in ((laplacian, 2.0, other), (covariance, None, longer)):
        result = map_result(pcvm_model(X, Y, kernel=kernel, width=width))
        found, wanted = latent_draws(result, X, kernel=kernel)[0], result["posterior"]["latent"]
        np.testing.assert_allclose(found, wanted.values[0, 0], rtol=1e-9)
        refused("of your own, which is not stored; needed kernel=", latent_draws, result, X)
        for bad, words in (("rbf", "kernel='rbf'"), (wrong, "kernel=<")):
            refused(f"was not built with {words}", latent_draws, result, X, kernel=bad)


def test_a_model_remembers_a_kernel_of_the_packages_own():
    for kernel, width in (("rbf", 1.7), ("linear-spline", None)):
        model = pcvm_model(X, Y, kernel=kernel, width=width)
        assert model.coords["kernel"] == (kernel,)
        for each in (model, pm.do(model, {}), model.copy()):
            result = map_result(each)
            found, wanted = latent_draws(result, X[:5])[0], result["posterior"]["latent"][0, 0, :5]
            np.testing.assert_allclose(found, wanted, rtol=1e-9)
    refused("was not built with kernel='rbf'", latent_draws, result, X[:5], kernel="rbf")
    result = map_result(pcvm_model(X, Y, kernel=RBF(1.7)))
    refused("was not built with kernel='l", predict, result, X, kernel="linear-spline")
    assert result["constant_data"]["width"] == 1.7
    refused(r"was not built with kernel=RBF\(width=1.8\)", latent_draws, result, X, kernel=RBF(1.8))


def test_an_argument_without_effect_is_refused():
    for kernel in ("linear-spline", pm.gp.cov.Matern52(2, ls=0.8)):
        refused(r"width=2\.0 was given with kernel=", pcvm_model, X, Y, kernel=kernel, width=2.0)
    with pm.Model():
        other = pm.LogNormal("w", 0.0, 1.0)
    for width in (other, 2.0 * other):
        refused("'w' of another model", pcvm_model, X, Y, width=width)
    refused("an unnamed prior.* by itself", pcvm_model, X, Y, width=2.0 * pm.Gamma.dist(3.0, 2.0))


def test_random_kernels_are_not_drawn_anew_in_predictions():
    with pm.Model():
        ell = pm.LogNormal("ell", 0.0, 0.5)
        kernel = pm.gp.cov.ExpQuad(2, ls=ell)
    result = map_result(pcvm_model(X, Y))
    refused("was not built with kernel=<", latent_draws, result, X, kernel=kernel)
    refused("random variables as parameters", as_piece(kernel), X, X)


def test_do_and_observe(model):
    fixed = pm.do(model, {"bias": 0.25})
    assert {rv.name for rv in fixed.free_RVs} == {"magnitude", "rate"}
    size = np.full(30, 0.1)
    assert not pm.observe(fixed, {"magnitude": size, "rate": 0.2}).free_RVs
    latent = basis_of(model) @ (model["signs"].get_value() * size) + 0.25
    found = fixed["latent"].eval({fixed["magnitude"]: size}, mode="FAST_COMPILE")
    np.testing.assert_allclose(found, latent, rtol=1e-10)
    # a copy that changes nothing is still a model that EM reads
    ends = [map_result(each) for each in (model, pm.do(model, {}))]
    one, other = (each["optimizer_result"]["log_posterior"] for each in ends)
    assert one == other


def test_centres_at_means_of_rows():
    centres, signs = choose_means(X, LABEL, random_state=0)
    model = pcvm_model(X, Y, basis="kmeans", width=1.1)
    np.testing.assert_array_equal(model["signs"].get_value(), signs)
    np.testing.assert_allclose(basis_of(model), RBF(1.1)(X, centres))
    numbers = rvm_model(np.tile(X, (2, 1)), np.arange(60.0), basis="kmeans")
    assert basis_of(numbers).shape == (60, 30)
    several = mpcvm_model(np.tile(X, (2, 1)), np.arange(60) % 4, basis="kmeans")
    assert several["signs"].get_value().shape == (40, 4)
    assert (several["signs"].get_value() > 0).sum(axis=0).tolist() == [10] * 4
    for bad in ("means", True):
        words = f"basis={bad!r}; needed centres, a number .* or 'kmeans'"
        refused(words, pcvm_model, X, Y, basis=bad)


@pytest.mark.parametrize("basis", [None, 7, "kmeans", "given"])
def test_weights_of_either_sign(basis):
    """Free weights of as many basis functions, without a label in the prior."""
    basis = X[:4] if isinstance(basis, str) and basis == "given" else basis
    one = {"signs": [1, -1, 1, -1]} if isinstance(basis, np.ndarray) else {}
    plain = basis_of(pcvm_model(X, Y, basis=basis, width=1.1, **one))
    model = pcvm_model(X, Y, basis=basis, signs="both", width=1.1)
    np.testing.assert_array_equal(basis_of(model), plain)
    assert not {"signs", "magnitude"} & set(model.named_vars)
    known = Hyperprior(5.0, 0.3, 0.5, 1.0)
    free = pcvm_model(X, Y, basis=basis, signs="both", width=1.1, hyperprior=known)
    weight = np.linspace(-1.0, 2.0, plain.shape[1])
    wanted = student(10.0, scale=np.sqrt(0.3 / 5.0)).logpdf(weight)
    np.testing.assert_allclose(pm.logp(free["weight"], weight).eval(), wanted)
    assert model["hyperprior"].get_value()[0] == Hyperprior.plug_in().c
    assert (map_result(model)["posterior"]["weight"].values < 0).any()


def test_weights_of_either_sign_elsewhere():
    several = mpcvm_model(X, np.arange(30) % 3, basis=X[:4], signs="both")
    assert "signs" not in several.named_vars
    assert several["weight"].eval().shape == (4, 3)
    with pm.Model() as model:
        pcvm_latent(X, name="f", signs="both", basis=5)  # without labels
    assert model["f_weight"].eval().shape == (5,)
    horseshoe = HalfHorseshoe(0.3)
    words = "HalfHorseshoe, of sizes; needed signs"
    refused(words, pcvm_model, X, Y, signs="both", basis=5, hyperprior=horseshoe)
    refused(r"signs='either'.*both", pcvm_model, X, Y, signs="either")
    refused(r"without signs.*or signs='both'", pcvm_model, X, Y, basis=X[:4])


IMPROPER = {
    pcvm_model: {"hyperprior": Hyperprior.jeffreys()},
    sparse_probit_model: {"prior": "jeffreys"},
    mrvm_model: {"hyperprior": Hyperprior.jeffreys(), "shared": True},
}
START = {"magnitude": np.full(30, 0.5), "bias": np.float64(0.1)}
FREE = {"weight": np.ones(2), "bias": np.float64(0.1)}
SAMPLERS = [(name, pcvm_model, start) for name in ("pymc", "nutpie") for start in (None, START)]
SAMPLERS += [("pymc", sparse_probit_model, start) for start in (None, FREE)]
SAMPLERS += [("numpyro", pcvm_model, None), ("pymc", mrvm_model, {"weight": np.ones((30, 2))})]


@pytest.mark.parametrize(("sampler", "build", "start"), SAMPLERS)
def test_samplers_refuse_an_improper_hyperprior(sampler, build, start):
    pytest.importorskip(sampler)
    words = "improper hyperprior.*sparse_probit_model take prior='laplace'"
    with build(X, Y, **IMPROPER[build]), pytest.raises(ValueError, match=words):
        pm.sample(**{**QUICK, "nuts_sampler": sampler}, initvals=start)


def test_draws_refuse_an_improper_hyperprior():
    model = pcvm_model(X, Y, hyperprior=Hyperprior.chen2009())
    with model, pytest.raises(ValueError, match="improper hyperprior"):
        pm.sample_prior_predictive(3)


BAD_INPUT = [
    ({"X": np.eye(6), "y": [*range(6)]}, r"y has 6 class\(es\) \(0, 1, 2, 3, 4, \.\.\.\)"),
    ({"y": [0, 1, 2, 0]}, r"y has 3 class\(es\).*exactly two; for several use mpcvm_model"),
    ({"hyperprior": "wide"}, r"hyperprior='wide' is not a Hyper.*a name of \('defa"),
    ({"precision": "joint", "hyperprior": Hyperprior.jeffreys()}, "needs a proper hyperprior"),
    ({"kernel": cubic, "width": pm.LogNormal.dist(0.0, 1.0)}, "width is a random variable"),
]


@pytest.mark.parametrize(("change", "words"), BAD_INPUT)
def test_bad_input_is_named(change, words):
    good = {"X": [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [0.5, 1.0]], "y": [0, 1, 0, 1]}
    refused(words, pcvm_model, **{**good, **change})


@pytest.mark.parametrize("name", ["default", "learned", "plug_in"])
def test_a_hyperprior_by_its_name(name):
    model = pcvm_model(X, Y, width=1.3, hyperprior=name)
    Phi, signs = basis_of(model), model["signs"].get_value()
    scaled = (Phi, signs) if name in ("default", "learned") else ()
    assert find_parts(model).hyperprior == getattr(Hyperprior, name)(*scaled)
    assert ("rate" in model.named_vars) == (name == "learned")


def test_learned_scales_of_other_models():
    classes = np.arange(len(X)) % 3
    of_free = (mrvm_model, classes, 5.0), (rvm_model, X[:, 0], 5.0)
    for build, target, c in ((mpcvm_model, classes, 1.0), *of_free):
        models = [build(X, target, width=1.3, hyperprior=name) for name in ("default", "learned")]
        Phi, (known, unknown) = basis_of(models[0]), (find_parts(x).hyperprior for x in models)
        assert (unknown.c, unknown.f) == (c, known.f)
        sizes = [np.sqrt(x.d / x.c) * prior_latent_size(Phi, None, x.c) for x in (known, unknown)]
        assert sizes[0] == pytest.approx(sizes[1])  # of the latent function
        assert (unknown.rate_shape is None) == (build is not mpcvm_model)
        assert unknown.rate_spread == (None if build is mpcvm_model else 1.5)
