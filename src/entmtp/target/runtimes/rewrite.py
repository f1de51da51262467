"""What is done to an exported graph: fewer products, exact sums, weights in int8.

Knows: nodes of `openvino.Model`. Does not know: models, files, how a graph runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WEIGHT_GROUP = 64
"""Neighbouring weights of a row that share a scale."""
_STAMP = b"""<?xml version="1.0"?>
<net name="stamp" version="11"><layers>
<layer id="0" name="stamped" type="Parameter" version="opset1">
<data shape="1" element_type="f32"/>
<rt_info><attribute name="precise" version="0"/></rt_info>
<output><port id="0" precision="FP32"><dim>1</dim></port></output>
</layer></layers><edges/></net>"""
"""A graph whose one node must not be computed in 16 bits: only a file can say so, not Python."""


def merge_products(graph: Any) -> None:
    """Make one product of those that multiply the same rows: query, key and value; gate and up.

    Each output stays the same sum; the rows are read, and quantised, once.
    """
    from openvino import opset13 as ops

    readers: dict[tuple[str, int], list[Any]] = {}
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "MatMul" and _is_weight(node.input_value(1).get_node()):
            rows = node.input_value(0)
            key = rows.get_node().get_friendly_name(), rows.get_index()
            readers.setdefault(key, []).append(node)
    for products in readers.values():
        if len(products) == 1 or not all(_is_row_product(product) for product in products):
            continue
        weights = [np.asarray(product.input_value(1).get_node().data) for product in products]
        rows = products[0].input_value(0)
        merged = ops.matmul(rows, ops.constant(np.concatenate(weights)), False, True)
        sizes = ops.constant([len(weight) for weight in weights])
        parts = ops.variadic_split(merged, ops.constant(-1), sizes)
        for place, product in enumerate(products):
            for reader in product.output(0).get_target_inputs():
                reader.replace_source_output(parts.output(place))
    graph.validate_nodes_and_infer_types()


def _is_row_product(product: Any) -> bool:
    """Whether it is `x @ w.T`, as a `Linear` is traced."""
    attributes = product.get_attributes()
    return bool(attributes["transpose_b"] and not attributes["transpose_a"])


def keep_sums_over_keys_in_float32(graph: Any) -> None:
    """Mark what adds up over keys in each layer, whatever format the graph is compiled for later.

    A product in bf16 adds neighbours in pairs, and which keys are neighbours depends on the tree;
    and a sum of some blocks must not be rounded before the next is added.
    """
    import openvino as ov

    (stamped, *_) = ov.Core().read_model(_STAMP).get_ordered_ops()
    ((key, stamp),) = dict(stamped.get_rt_info()).items()
    in_sums: set[str] = set()
    for node in graph.get_ordered_ops():
        sources = [value.get_node() for value in node.input_values()]
        is_first = node.get_type_name() == "MatMul" and _comes_of_exp(sources[0])
        if is_first or any(source.get_friendly_name() in in_sums for source in sources):
            node.set_rt_info(stamp, key)
            if node.get_type_name() != "Divide":  # the sums are finished
                in_sums.add(node.get_friendly_name())


def _comes_of_exp(node: Any) -> bool:
    """Whether it is the weights of keys, or some of them."""
    while node.get_type_name() in ("Slice", "StridedSlice"):
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Exp")


def quantise_weights(graph: Any) -> None:
    """Make each weight matrix int8: `w ≈ round(w / s)·s`, with `s = max|w|/127` of its group.

    A group is `WEIGHT_GROUP` neighbours of a row, or a row where that does not divide it and in
    the embedding. In this form (whole numbers, conversion, scale) the CPU plugin keeps weights in
    int8, and multiplies in int8 where it may quantise activations as well.
    """
    for node in graph.get_ordered_ops():
        if not _is_weight(node):
            continue
        readers = node.output(0).get_target_inputs()
        is_embedding = any(r.get_node().get_type_name() == "Gather" for r in readers)
        value = _quantised(np.asarray(node.data, dtype=np.float32), not is_embedding)
        for reader in readers:
            reader.replace_source_output(value.output(0))
    graph.validate_nodes_and_infer_types()


def _quantised(weight: np.ndarray[Any, Any], grouped: bool) -> Any:
    """The graph of one matrix's weights, from int8 constants."""
    from openvino import opset13 as ops

    rows, width = weight.shape
    grouped = grouped and width % WEIGHT_GROUP == 0
    parts = weight.reshape(rows, -1, WEIGHT_GROUP) if grouped else weight
    scale = np.maximum(np.abs(parts).max(-1, keepdims=True), np.float32(1e-30)) / np.float32(127)
    whole = ops.constant(np.rint(parts / scale).astype(np.int8))
    value = ops.multiply(ops.convert(whole, "f32"), ops.constant(scale))
    return ops.reshape(value, ops.constant([rows, width]), False) if grouped else value


def _has_weight(product: Any) -> bool:
    inputs = (product.input_value(place).get_node() for place in (0, 1))
    return any(node.get_type_name() == "Constant" for node in inputs)


def _is_weight(node: Any) -> bool:
    """A matrix that rows are multiplied with, or the embedding."""
    if node.get_type_name() != "Constant" or len(node.shape) != 2 or min(node.shape) < 2:
        return False
    if node.get_element_type().get_type_name() != "f32":
        return False
    readers = {target.get_node().get_type_name() for target in node.output(0).get_target_inputs()}
    return bool(readers) and readers <= {"MatMul", "Gather"}
