"""Exports of models of few vectors: a C function, and an ONNX graph in double precision."""
