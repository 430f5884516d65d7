"""One builder: a row of the family table and data in, an ordinary `pm.Model` out.

What a likelihood or a prior declares is in one table each, `DECLARED_LIKELIHOODS` and `DECLARED_PRIORS`,
by the name of the piece: a new one is one entry.
"""

from dataclasses import asdict, dataclass, replace
from inspect import getfullargspec
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.family import FAMILY, System
from pcvm_pymc.core.pieces import priors, validation
from pcvm_pymc.core.pieces.likelihoods import ALIASES, LIKELIHOODS, Likelihood
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.priors import LATENT_SIZE, Hyperprior, Prior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import check_room
from pcvm_pymc.core.pieces.row_weights import as_noise_std, check_noise
from pcvm_pymc.model.bases import AnyKernel, Width, choose_bases
from pcvm_pymc.model.coordinates import native, storable
from pcvm_pymc.model.data import OF_ROWS, Frame, KernelModel
from pcvm_pymc.model.likelihoods import DECLARED_LIKELIHOODS
from pcvm_pymc.model.names import Names, adding_to
from pcvm_pymc.model.priors import DECLARED_PRIORS, declare_prior

# proper ones; an improper one, of which nothing can be sampled, is asked for in full
_NAMES = ("default", "learned", "plug_in")


def build(
    row: System,
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: str | Likelihood | None = None,
    signs: ArrayLike | str | None = None,
    **options: Any,
) -> pm.Model:
    """Build a row of the family table as a PyMC model, or add it to the model of a ``with`` block.

    Parameters
    ----------
    row : System
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
    likelihood : str or Likelihood, optional
        One of the row's. Default: its own.
    signs : array_like or str, optional
        As for `pcvm_pymc.pcvm_model`, as are ``kernel``, ``width``, ``precision`` and ``basis``.
    **options
        For the latent function: those, and ``hyperprior`` (one of the row's, or its name: of `named_prior`
        where a Laplace comes first among these, else that of a method of `Hyperprior`), ``bias`` (with the
        hyperprior's density: ``"prior"``, a flat one: ``"free"``, or ``"none"``), ``features``. Of rows:
        ``sample_weight``, and ``noise`` where it is an array. Others are parameters of the likelihood,
        numbers or priors; None for its default.

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.
    """
    noise: Any = options.get("noise")
    given = {"sample_weight": options.pop("sample_weight", None)}
    if np.ndim(noise) > 0 and getattr(noise, "owner", None) is None:  # that of each row
        given["noise_std"] = options.pop("noise")
    check_same_rows(X, y=y, sample_weight=given["sample_weight"], noise=given.get("noise_std"))
    ours = {*getfullargspec(_declare_function).kwonlyargs, *getfullargspec(choose_bases).kwonlyargs}
    nuisance = {name: options.pop(name) for name in set(options) - ours}
    with adding_to(pm.Model.get_context(error_if_none=False) or KernelModel()) as model:
        frame, names = Frame.in_model(Names(model), X)
        link, nuisance = _link(names, row, likelihood, nuisance)
        labels, one_class = names.values("y", y), signs is not None
        targets = _Targets.of(link, labels, len(frame.values), one_class=one_class)
        codes = (targets.known > 0).astype("int64") if targets.kind == "labels" else targets.known
        of_rows = _of_rows(names, link, nuisance, given, codes)
        targets = replace(targets, weight=of_rows.get("sample_weight"))
        if targets.kind == "numbers" and "noise_std" not in of_rows:
            size = priors.typical_size(codes, targets.weight)
            nuisance = {"noise": pm.HalfNormal.dist(size), **nuisance}
        latent = _declare_function(row, frame, targets, names, signs=signs, **options)
        if targets.classes is not None:
            names.add_dims(**{"class": targets.classes})
        observed = names.data("y", codes, "obs")
        data = {key: names.data(key, values, "obs") for key, values in of_rows.items()}
        data |= {key: names.variable(key, value) for key, value in nuisance.items()}
        kind, parameters = DECLARED_LIKELIHOODS[link](latent, **data)
        name = names("target" if targets.kind == "numbers" else "label")
        kind(name, **parameters, observed=observed, dims=names.obs)
        names.record("likelihood", link)  # where results of pm.sample find it
    return model


def pcvm_latent(
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    name: str = "latent",
    dim: str = "obs",
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    hyperprior: str | Prior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    signs: ArrayLike | Literal["both"] | None = None,
    basis: ArrayLike | int | None = None,
    bias: bool = True,
) -> TensorVariable:
    r"""Add the PCVM's latent function, without a likelihood, to the model of the block.

    .. math:: f(x) = \sum_j w_j \exp(-\|x - z_j\|^2 / \text{width}^2) + b

    What is done with it is the caller's: further terms, group intercepts, any likelihood. `pcvm_model` is
    this and the row's own likelihood; a second one, added to it, would count the data twice.

    Parameters
    ----------
    X : array_like or pm.Data, shape (n_obs, n_features)
        Inputs, used as they are. A `pm.Data` of the model is taken itself, with its dims: `pm.set_data` on it
        changes the function.
    y : array_like or pm.Data, shape (n_obs,), optional
        Labels of two classes. They are not observed here: the weights take their signs from them. Not needed
        where `signs` are given.
    name : str
        Name of the function. A name other than ``"latent"`` is the prefix of all that belongs to the function
        (``f``, ``f_weight``, the dim ``f_basis``), so that a model may have several.
    dim : str
        Name of the dim of the rows, where `X` does not name it. One that the model has is taken, with its
        coordinates.
    kernel, width, hyperprior, precision, signs, basis
        As for `pcvm_model`.
    bias : bool
        Whether the function has a bias. Leave it out where you add intercepts of your own.

    Returns
    -------
    TensorVariable
        The deterministic variable of that name, shape (n_obs,).

    Raises
    ------
    TypeError
        Outside a ``with pm.Model()`` block.
    ValueError
        For input that cannot be used, or a name that the model has already. The model is then as it was.

    Notes
    -----
    With further terms or another likelihood the model is no row of `FAMILY` any more: `sample` takes NUTS,
    and `find_map_em` steps along PyMC's gradient for what is not a weight or bias. `new_data(model, X_new,
    name=...)` gives it new rows.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), eqs. 3-4 and 21-22.

    Examples
    --------
    A linear predictor, intercepts of three groups, and a user-defined likelihood:

    >>> import numpy as np, pymc as pm
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.normal(size=(30, 2)), np.arange(30) % 3
    >>> y = (X[:, 0] > 0).astype(int)
    >>> with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
    ...     f = pcvm_latent(X, y, width=1.5, bias=False)
    ...     slope = pm.Normal("slope")
    ...     intercept = pm.Normal("intercept", dims="group")
    ...     score = f + slope * X[:, 1] + intercept[group]
    ...     label = pm.Bernoulli("label", logit_p=score, observed=y)
    >>> sorted(each.name for each in model.free_RVs)
    ['intercept', 'magnitude', 'rate', 'slope']
    """
    return _add_latent(FAMILY["pcvm"], **locals())


def rvm_latent(
    X: ArrayLike,
    *,
    name: str = "latent",
    dim: str = "obs",
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    size: float = LATENT_SIZE,
    hyperprior: str | Hyperprior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    basis: ArrayLike | int | None = None,
    bias: bool = True,
) -> TensorVariable:
    """Add the relevance vector machine's latent function, without a likelihood, to the model of the block.

    As `pcvm_latent`, with unconstrained weights, so that no labels are needed: for counts, times, numbers.

    Parameters
    ----------
    X, name, dim, kernel, width, precision, bias
        As for `pcvm_latent`.
    size : float
        Prior median size of the function, in the unit of what it is added to: the default hyperprior's scale.
        Not together with a hyperprior.
    hyperprior : str or Hyperprior, optional
        Gamma hyperpriors of the precisions, by name as for `pcvm_model`, proper. Default: scaled to the
        basis functions.
    basis : array_like, shape (n_basis, n_features), int or "kmeans", optional
        Centres of the basis functions. A number takes so many rows of `X`, by k-means++, ``"kmeans"`` 30
        k-means centres. Default: the rows of `X`.

    Returns
    -------
    TensorVariable
        The deterministic variable of that name, shape (n_obs,).

    Raises
    ------
    TypeError
        Outside a ``with pm.Model()`` block.
    ValueError
        For input that cannot be used, or a name that the model has already.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1, 211-244.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> x = np.linspace(-3, 3, 40)[:, None]
    >>> with pm.Model() as model:
    ...     rate = pm.math.exp(rvm_latent(x, width=1.0, basis=10))
    ...     count = pm.Poisson("count", rate, observed=np.arange(40) // 8)
    >>> sorted(each.name for each in model.free_RVs)
    ['bias', 'weight']
    """
    given = locals()
    validation.check_real("size", size)
    if size != LATENT_SIZE and hyperprior is not None:
        raise ValueError(f"size={size!r} was given with a hyperprior, which has its own scale")
    return _add_latent(FAMILY["rvm_classification"], y=None, signs=None, **given)


def _add_latent(
    row: System,
    X: ArrayLike,
    y: ArrayLike | None,
    *,
    name: str,
    dim: str,
    bias: bool,
    size: float = LATENT_SIZE,
    **options: Any,
) -> TensorVariable:
    validation.check_flag("bias", bias)
    check_same_rows(X, y=y)
    with adding_to(pm.modelcontext(None)) as model:
        frame, names = Frame.in_model(Names(model, name, dim), X)
        if dim not in ("obs", names.obs):
            raise ValueError(f"dim={dim!r}, and X has rows of the dim {names.obs!r}; leave it out")
        targets = _Targets(None, "labels", None, size)
        if y is not None:
            labels, given = names.values("y", y), options["signs"] is not None
            targets = _Targets.of(row.likelihood, labels, len(frame.values), one_class=given)
        kind = "prior" if bias else "none"
        return _declare_function(row, frame, targets, names, bias=kind, **options)


def _declare_function(
    row: System,
    frame: Frame,
    targets: "_Targets",
    names: Names,
    *,
    hyperprior: Any = None,
    precision: str = "marginal",
    bias: str = "prior",
    **of_bases: Any,
) -> TensorVariable:
    """Check the options of a latent function, declare its variables, and return the function."""
    hyperprior = _checked_prior(row, hyperprior, precision)
    for name, value in of_bases.items():
        if isinstance(value, SharedVariable):
            needed = f"its values, {name}={value.name}.get_value()"
            raise ValueError(f"{name} is the pm.Data {value.name!r}; needed {needed}")
    n_scores = targets.n_scores
    scores = ("class",) if n_scores else ()
    within = targets.known if row.signs is not None or n_scores else None
    function = names("latent")  # before any work
    bases = choose_bases(row, frame.values, within, (n_scores,) * len(scores), **of_bases)
    if bases.kernel is not None:
        check_room(len(frame.values), len(bases.centres))
    names.add_dims(obs=frame.index)
    if n_scores:
        names.add_dims(**{"class": targets.classes})
    Phi, typical = bases.declare(names, frame.columns)
    sign = bases.sign
    if sign is None and isinstance(hyperprior, priors.HalfHorseshoe):
        raise ValueError("hyperprior is a HalfHorseshoe, of sizes; needed signs, or a Hyperprior")
    if isinstance(hyperprior, str):
        hyperprior = _scaled_prior(row, hyperprior, typical, sign, targets)
    if row.shared and isinstance(hyperprior, Hyperprior):
        hyperprior = priors.SharedHyperprior(**asdict(hyperprior))
    of_prior = (hyperprior, precision, bias, names)
    weight, intercept = declare_prior(*of_prior, free=sign is None, n_scores=n_scores)
    if sign is not None:
        signed = names.data("signs", sign, "basis", *scores) * weight
        weight = pm.Deterministic(names("weight"), signed, dims=names.dims("basis", *scores))
    latent = pt.dot(Phi, weight) if intercept is None else pt.dot(Phi, weight) + intercept
    return pm.Deterministic(function, latent, dims=names.dims("obs", *scores))


# --- what was given, checked --------------------------------------------------------------------


def _link(
    names: Names, row: System, likelihood: str | Likelihood | None, nuisance: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the likelihood's name, and its parameters that were given: one number or variable each."""
    name: Any = row.likelihood if likelihood is None else getattr(likelihood, "name", likelihood)
    name = ALIASES.get(str(name), name)
    validation.check_choice("likelihood", name, row.likelihoods)
    defaults = getfullargspec(DECLARED_LIKELIHOODS[name]).kwonlydefaults or {}
    has = {*defaults} - {*OF_ROWS}
    given = {key: value for key, value in nuisance.items() if value is not None}
    is_object = isinstance(likelihood, Likelihood)
    for key in given:
        if is_object or key not in has:
            what = "its own" if key in has else "none"
            raise ValueError(
                f"{key} was given with likelihood={likelihood!r}, which has {what}: omit it"
            )
    if is_object:
        given = {key: getattr(likelihood, key) for key in has}
    given = {key: value for key, value in (defaults | given).items() if value is not None}
    for key, value in given.items():
        if isinstance(value, Variable) and value.owner is not None and not value.type.ndim:
            continue
        given[key] = number = value if np.ndim(value) else names.values(key, value)
        if not (validation.is_real(number) and 0 < number < np.inf):
            raise ValueError(
                f"{key}={validation.shown(value)}; needed one positive and finite number, a variable or a "
                "prior without dimensions, or rvm_latent and a likelihood of your own, which sample takes"
            )
    return name, given


def _of_rows(
    names: Names, link: str, nuisance: dict[str, Any], given: dict[str, Any], codes: NDArray[Any]
) -> dict[str, Array]:
    """Return the weights and the known noise of rows, as far as they were given."""
    of_rows, has = {}, getfullargspec(DECLARED_LIKELIHOODS[link]).kwonlyargs
    for name in [name for name, value in given.items() if value is not None]:
        if name not in has:
            also = " or 'student-t'" if name == "sample_weight" else ""
            raise ValueError(
                f"{name.removesuffix('_std')} was given for each row with likelihood={link!r}; needed "
                f"'normal'{also}; estimators of classes have sample_weight in fit"
            )
        check = as_noise_std if name == "noise_std" else validation.as_weights
        of_rows[name] = check(names.values(name, given[name]), len(codes))
    if not of_rows.get("sample_weight", np.ones(1)).all():
        row = int(np.argmin(of_rows["sample_weight"]))
        raise ValueError(f"sample_weight has the value 0 in row {row}; needed positive ones")
    if "noise_std" in of_rows and "noise" in nuisance:
        raise ValueError("noise was given with a likelihood that has its own; needed one of them")
    noise = of_rows.get("noise_std", nuisance.get("noise"))
    if not (noise is None or isinstance(noise, Variable)):
        check_noise("noise", noise, codes)
    return of_rows


def _checked_prior(row: System, given: Prior | str | None, precision: str) -> Prior | str:
    """Return the hyperprior, or its name where its scale depends on the data."""
    validation.check_choice("precision", precision, ("marginal", "joint"))
    of_laplace = row.hyperprior == "laplace"
    prior: Any = row.hyperprior if given is None else given
    if isinstance(prior, str) and (of_laplace or prior in _NAMES):
        return Hyperprior.plug_in() if not of_laplace and prior == "plug_in" else prior
    fault = f"{'prior' if of_laplace else 'hyperprior'}={validation.shown(prior)}"
    if getattr(prior, "name", None) not in row.priors:
        raise ValueError(
            f"{fault} is not a Hyperprior; needed Hyperprior(c, d, e, f), one of its methods, a name of "
            f"{_NAMES}, or None for the default (priors of this model: {row.priors})"
        )
    if not prior.is_proper and (precision == "joint" or "em" not in row.solvers):
        needed = "a proper Hyperprior(c, d, e, f), all positive, or None"
        raise ValueError(f"{fault}: this model needs a proper hyperprior; needed {needed}")
    if (prior.name, precision) not in DECLARED_PRIORS:
        raise ValueError(f"{fault} has no precisions, for precision='joint'; use 'marginal'")
    return prior


@dataclass(frozen=True)
class _Targets:
    """Targets as the likelihood needs them: labels -1. and +1., class indices, or numbers."""

    known: Any  # as an array; None for a function without a likelihood
    kind: str
    classes: NDArray[Any] | None
    size: float = LATENT_SIZE  # of the latent function, where targets do not tell
    weight: Array | None = None  # how often each counts

    @classmethod
    def of(cls, link: str, y: ArrayLike, n_obs: int, *, one_class: bool) -> "_Targets":
        kind = LIKELIHOODS[link].targets
        if kind == "numbers":
            known: Any = validation.as_targets(y, n_obs)
            LIKELIHOODS[link].check_targets(known)
            return cls(known, kind, None)
        labels = native(validation.present_labels(y))
        if kind == "classes":
            known, classes = validation.as_classes(labels, n_obs)
        else:
            known, classes = validation.as_labels(labels, n_obs, one_class=one_class)
        return cls(known, kind, storable(classes, "y"))

    @property
    def n_scores(self) -> int:
        """The number of classes under the multinomial probit, else 0."""
        return len(self.classes) if self.kind == "classes" and self.classes is not None else 0


def _scaled_prior(
    row: System, name: str, typical: Array, sign: Array | None, targets: _Targets
) -> Prior:
    """Return the named prior, scaled to the basis functions, the classes and the unit of the targets."""
    if row.hyperprior == "laplace":
        return priors.named_prior(name, typical)
    if sign is not None and targets.n_scores:  # each class has its own signs
        by_class = [Hyperprior.default(typical, column) for column in sign.T]
        shape = priors.RATE_SHAPE if name == "learned" else None
        d = float(np.mean([prior.d for prior in by_class]))
        return replace(by_class[0], d=d, rate_shape=shape)
    size, of_bias = targets.size, (targets.size / LATENT_SIZE) ** 2
    if targets.kind == "numbers":
        size = priors.typical_size(targets.known, targets.weight)
        of_bias = size**2 + float(np.average(targets.known, weights=targets.weight)) ** 2
    scaled = Hyperprior.learned if name == "learned" else Hyperprior.default
    prior = scaled(typical, sign, latent_size=size)
    return replace(prior, f=prior.f * of_bias)
