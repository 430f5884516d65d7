"""Converters of our estimators for skl2onnx, which exports pipelines and searches around them."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.impute import SimpleImputer

from pcvm_pymc.core.pieces.validation import is_real
from pcvm_pymc.estimators.multiclass import MPCVMClassifier, MRVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.rvm import RVMClassifier, RVMRegressor
from pcvm_pymc.estimators.sparse_probit import SparseProbitClassifier
from pcvm_pymc.export.few_vectors import few_vectors_of
from pcvm_pymc.export.onnx_graph import OPSET, Node, predictions

_REGRESSION = "PcvmRVMRegressor"
_REMEDY = (
    "needed a fitted estimator of it alone. For a pipeline or a search call register_onnx() of "
    "pcvm_pymc.export, then skl2onnx.to_onnx(model, X[:1], options={'zipmap': False})"
)


def to_onnx(model: Any, *, return_std: bool = False) -> Any:
    """Return a fitted model of few vectors as an ONNX model.

    Parameters
    ----------
    model : fitted classifier or RVMRegressor
        Of few vectors, as for `to_c`. For a pipeline or a search see `register_onnx`.
    return_std : bool
        Of a regression also the standard deviation, as for `to_c`.

    Returns
    -------
    onnx.ModelProto
        Input ``X``, doubles of shape (n_rows, n_features): NaN where a feature is missing, and a category of
        words by the code of its level, as for `to_c`. Then ``metadata_props`` has ``levels``, in JSON: by the
        number of each such category its levels, in the order of their codes. Outputs of a classifier are
        ``label``, the likeliest class (a flag as 0 or 1), and ``probabilities``, doubles of shape
        (n_rows, n_classes) in the order of ``classes_``; those of a regression ``variable``, the mean, and
        with `return_std` ``std``, doubles of shape (n_rows, 1). To write it, call
        ``onnx.save(to_onnx(model), "model.onnx")``.

    Raises
    ------
    ImportError
        Without ``skl2onnx`` (the extra ``pcvm-pymc[onnx]``).
    ValueError
        As for `to_c`, or if the classes are neither numbers of at most 64 bits nor words.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> few = PCVMClassifier(width=1.0, n_vectors=2).fit(X, X[:, 0] > 0)
    >>> [each.name for each in to_onnx(few).graph.output]
    ['label', 'probabilities']
    """
    few = few_vectors_of(model, return_std, _REMEDY)
    register_onnx()
    from onnx import helper
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import DoubleTensorType

    made = convert_sklearn(
        model,
        initial_types=[("X", DoubleTensorType([None, few.n_features]))],
        options={
            id(model): {"return_std": return_std} if few.classes is None else {"zipmap": False}
        },
        target_opset=OPSET,
    )
    if few.words:
        levels = {str(j): values.tolist() for j, values in few.words.items()}
        helper.set_model_props(made, {"levels": json.dumps(levels, default=str)})
    return made


def register_onnx() -> None:
    """Make skl2onnx export the estimators of this package, also within pipelines and searches.

    Call it once. Then ``skl2onnx.to_onnx`` and ``skl2onnx.convert_sklearn`` take a fitted `Pipeline` or
    `GridSearchCV` whose estimator is one that `to_onnx` takes, of few vectors. Give doubles: in single
    precision the steps before lose digits, and the outputs are rounded. A category of our estimator is then
    given by the value of its level, a number, as the step before makes it.

    Options of classifiers are ``zipmap``, ``nocl`` and ``output_class_labels``, as of those of scikit-learn;
    ``RVMRegressor(std="weights")`` has ``return_std``, for a second output ``std``. A `SimpleImputer` of
    doubles gets a converter, too: that of skl2onnx rounds its statistics to single precision.

    Raises
    ------
    ImportError
        Without ``skl2onnx`` (the extra ``pcvm-pymc[onnx]``).

    Examples
    --------
    >>> import numpy as np
    >>> from skl2onnx import to_onnx
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import RobustScaler
    >>> from pcvm_pymc import PCVMClassifier
    >>> from pcvm_pymc.export import register_onnx
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> few = PCVMClassifier(width=1.0, n_vectors=2)
    >>> pipeline = make_pipeline(RobustScaler(), few).fit(X, X[:, 0] > 0)
    >>> register_onnx()
    >>> model = to_onnx(pipeline, X[:1], options={"zipmap": False})
    >>> [each.name for each in model.graph.output]
    ['label', 'probabilities']
    """
    try:
        from skl2onnx import update_registered_converter
    except ImportError:
        raise ImportError('register_onnx needs skl2onnx: pip install "pcvm-pymc[onnx]"') from None
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes
    from skl2onnx.shape_calculators.imputer import calculate_sklearn_imputer_output_shapes

    shapes, both = calculate_linear_classifier_output_shapes, [True, False]
    # those of scikit-learn's own classifiers
    options = {"zipmap": [*both, "columns"], "nocl": both, "output_class_labels": both}
    several = MPCVMClassifier, MRVMClassifier
    for estimator in (PCVMClassifier, SparseProbitClassifier, RVMClassifier, *several):
        name = f"Pcvm{estimator.__name__}"
        update_registered_converter(estimator, name, shapes, _convert, options=options)
    update_registered_converter(
        RVMRegressor, _REGRESSION, _shapes, _convert, parser=_parse, options={"return_std": both}
    )
    shapes = calculate_sklearn_imputer_output_shapes
    update_registered_converter(SimpleImputer, "SklearnSimpleImputer", shapes, _convert_imputer)


def _parse(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Declare the outputs of a regression for skl2onnx: mean and, as an option, standard deviation."""
    from skl2onnx.common.data_types import guess_tensor_type

    operator = scope.declare_local_operator(_REGRESSION, model)
    operator.inputs = inputs
    has_std = scope.get_options(model, {"return_std": False})["return_std"]
    for name in ("variable", "std") if has_std else ("variable",):
        kind = guess_tensor_type(inputs[0].type)
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def _shapes(operator: Any) -> None:
    """Set the shapes of the outputs of a regression."""
    for output in operator.outputs:
        output.type.shape = [operator.inputs[0].get_first_dimension(), 1]


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Append the nodes of a fitted estimator to a graph of skl2onnx."""
    from onnx import TensorProto
    from skl2onnx.common.data_types import guess_proto_type
    from skl2onnx.common.utils_classifier import get_label_classes

    if container.target_opset < OPSET:
        raise ValueError(f"target_opset={container.target_opset}; needed {OPSET} or more")
    is_regression, outputs = operator.type == _REGRESSION, operator.outputs
    few = few_vectors_of(operator.raw_operator, is_regression and len(outputs) > 1)
    if not is_regression:  # the option `nocl` numbers them
        classes = get_label_classes(scope, operator.raw_operator).tolist()
        kind = object if isinstance(classes[0], str) else np.int64
        coded = [value.encode() if kind is object else value for value in classes]
        few = replace(few, classes=np.array(coded, dtype=kind))
    x = _input(scope, operator, container).op("Cast", to=TensorProto.DOUBLE)
    for node, output in zip(predictions(x, few), outputs, strict=True):
        kind = guess_proto_type(output.type)
        _name(node if kind == TensorProto.STRING else node.op("Cast", to=kind), output)


def _convert_imputer(scope: Any, operator: Any, container: Any) -> None:
    """Append the nodes of a SimpleImputer in double precision; skl2onnx converts the others."""
    from skl2onnx.common.data_types import DoubleTensorType
    from skl2onnx.operator_converters.imputer_op import convert_sklearn_imputer

    model, doubles = operator.raw_operator, isinstance(operator.inputs[0].type, DoubleTensorType)
    is_nan = is_real(model.missing_values) and np.isnan(model.missing_values)
    if doubles and is_nan and not model.add_indicator:
        x, statistics = _input(scope, operator, container), model.statistics_
        filled = x.op("IsNaN").op("Where", statistics, x)
        kept = np.flatnonzero(~np.isnan(statistics))  # columns with some value
        _name(filled.op("Gather", kept, axis=1), operator.outputs[0])
    else:
        convert_sklearn_imputer(scope, operator, container)


def _input(scope: Any, operator: Any, container: Any) -> Node:
    """Return the input of an operator, several inputs concatenated."""
    from skl2onnx.operator_converters.common import concatenate_variables

    return Node(scope, container, concatenate_variables(scope, operator.inputs, container))


def _name(node: Node, output: Any) -> None:
    """Give a node the name of an output."""
    node.container.add_node("Identity", [node.name], output.full_name)
