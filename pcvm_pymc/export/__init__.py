"""Exports of models of few vectors: a C function, and an ONNX graph in double precision."""

from pcvm_pymc.export.onnx_converters import register_onnx as register_onnx
